"""Which GPU functions of the pool work on this machine, and how fast?

Facts are independent: if one fails, its error is printed, the others still run, and the exit code
is 1. Every line of output is JSON; `--report` also writes a page.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import gpu_peers
import numpy
import torch
from gpu_peers import hear, peer
from gpu_report import Rows, conditions, page

from flowtrain_core import Consumer, Pool, Producer, cuda

DEVICE = 0
SIZES = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20]
BATCH_BYTES = 256 << 20
SAMPLES = 9
ROUNDS = 2000
WARM_UP = 100
SHARED_BYTES = 1 << 30
ITEM_BYTES = 4 << 20


def gbps(enqueue: Callable[[], None], nbytes: int) -> tuple[float, float]:
    """Median and slowest rate in GB/s of copies of nbytes, enqueued back to back on stream 0."""
    times = []
    repeats = max(1, BATCH_BYTES // nbytes)
    for _ in range(SAMPLES + 2):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(repeats):
            enqueue()
        cuda.synchronize(device=DEVICE, stream=0)
        times.append((time.perf_counter() - started) / repeats)
    rates = [nbytes / seconds / 1e9 for seconds in times[2:]]  # The first two warm up.
    return round(float(numpy.median(rates)), 2), round(min(rates), 2)


def spread(values: list[float]) -> dict[str, float]:
    """Percentiles of latencies in microseconds, without the warm-up."""
    kept = values[WARM_UP:]
    return {
        "p50_us": round(float(numpy.percentile(kept, 50)), 2),
        "p99_us": round(float(numpy.percentile(kept, 99)), 2),
        "rounds": len(kept),
    }


def pool_name(what: str) -> str:
    return f"gpu-facts-{what}-{os.getpid()}"


def devices() -> Rows:
    """Capabilities reported by the driver."""
    fields = [name for name in dir(cuda.Device) if not name.startswith("_")]
    return [{name: getattr(device, name) for name in fields} for device in cuda.devices()]


def registration() -> Rows:
    """Time to register a prefaulted pool segment, and to unregister it by close."""
    rows = []
    for gib in (1, 4):
        with Pool.create(pool_name(f"reg{gib}"), bytes=gib << 30) as pool:
            started = time.perf_counter()
            nbytes = cuda.register_host(pool, device=DEVICE)
            took = time.perf_counter() - started
            started = time.perf_counter()
            again = cuda.register_host(pool, device=DEVICE)
            repeat = time.perf_counter() - started
            assert nbytes == again == gib << 30
            started = time.perf_counter()
            pool.close()
            undone = time.perf_counter() - started
        rows.append(
            {
                "gib": gib,
                "register_s_per_gib": round(took / gib, 4),
                "again_us": round(repeat * 1e6, 1),
                "close_s_per_gib": round(undone / gib, 4),
            }
        )
    return rows


def host_copies() -> Rows:
    """Rates between device and host memory, by kind of host memory."""
    biggest = max(SIZES)
    device = torch.randint(0, 256, (biggest,), dtype=torch.uint8, device="cuda")
    pinned = torch.empty(biggest, dtype=torch.uint8, pin_memory=True)
    rows: Rows = []
    with (
        Pool.create(pool_name("registered"), bytes=biggest) as registered,
        Pool.create(pool_name("plain"), bytes=biggest) as plain,
    ):
        cuda.register_host(registered, device=DEVICE)
        producers = [Producer(registered), Producer(plain)]
        leases = [producer.lease((biggest,), "uint8") for producer in producers]
        views = [torch.from_dlpack(lease) for lease in leases]
        hosts = {"registered pool": views[0], "unregistered pool": views[1], "torch pinned": pinned}
        for kind, host in hosts.items():
            host.copy_(device)
            wrong = int((host != device.cpu()).sum())
            for nbytes in SIZES:
                given = {"nbytes": nbytes, "device": DEVICE, "stream": 0}

                def to_device(host: Any = host, given: Any = given) -> None:
                    cuda.copy_to_device(device.data_ptr(), host.data_ptr(), **given)

                def to_host(host: Any = host, given: Any = given) -> None:
                    cuda.copy_to_host(host.data_ptr(), device.data_ptr(), **given)

                h2d, h2d_worst = gbps(to_device, nbytes)
                d2h, d2h_worst = gbps(to_host, nbytes)
                rows.append(
                    {
                        "host_memory": kind,
                        "bytes": nbytes,
                        "h2d_gbps": h2d,
                        "h2d_slowest": h2d_worst,
                        "d2h_gbps": d2h,
                        "d2h_slowest": d2h_worst,
                        "wrong_bytes": wrong,
                    }
                )
        del views, hosts, host
        for lease in leases:
            lease.abort()
    assert all(row["wrong_bytes"] == 0 for row in rows), rows
    return rows


def device_copies() -> Rows:
    """Rate of copies within the device, as bytes read plus bytes written."""
    rows = []
    for nbytes in (64 << 20, 1 << 30, 4 << 30):
        source = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device="cuda")
        target = torch.zeros_like(source)
        given = {"nbytes": nbytes, "device": DEVICE, "stream": 0}

        def copy(source: Any = source, target: Any = target, given: Any = given) -> None:
            cuda.copy_on_device(target.data_ptr(), source.data_ptr(), **given)

        rate, worst = gbps(copy, nbytes)
        assert torch.equal(source, target)
        rows.append({"bytes": nbytes, "gbps": 2 * rate, "slowest": 2 * worst})
    return rows


def _shared(tier: Literal["vmm", "ipc"]) -> Rows:
    """Memory of a device in a pool that another process reads and writes; each byte is checked."""
    torch.zeros(1, device="cuda")
    with Pool.create(pool_name(tier)) as pool:
        started = time.perf_counter()
        segment = pool.add_segment(classes=[(SHARED_BYTES, 1)], tier=tier, device=DEVICE)
        made_ms = (time.perf_counter() - started) * 1e3
        found = gpu_peers.exchange(pool, segment, SHARED_BYTES)
    assert found["wrong_bytes_there"] == found["wrong_bytes_here"] == 0, found
    row = {"bytes": SHARED_BYTES, "make_ms": made_ms, **found}
    return [{name: round(value, 3) for name, value in row.items()}]


def shared_by_descriptor() -> Rows:
    """Device memory shared with another process by a POSIX descriptor; every byte is checked."""
    return _shared("vmm")


def shared_by_handle() -> Rows:
    """Device memory shared with another process by a legacy IPC handle; every byte is checked."""
    return _shared("ipc")


def latency_between_streams() -> Rows:
    """Time from the end of a stream's work to the start of work that waits for its item.

    In one process by timestamps of the device; to another process by the host's clock, from the
    call that publishes until the host sees that its stream has passed, on idle streams.
    """
    name, ages = pool_name("streams"), []
    classes = [(4096, 2)]
    with Pool.create(name, classes=classes, rings=("here", "there", "back")) as pool:
        segment = pool.add_segment(classes=classes, tier="device", device=DEVICE)
        producer, consumer = Producer(pool, "here", segment=segment), Consumer(pool, "here")
        writing, reading = torch.cuda.Stream(), torch.cuda.Stream()
        for _ in range(ROUNDS):
            written, begun = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            lease = producer.lease((4096,), "uint8", timeout_s=gpu_peers.TIMEOUT_S)
            with torch.cuda.stream(writing):
                torch.cuda._sleep(500_000)  # The wait is enqueued meanwhile.
                written.record()
            lease.publish(0, writing.cuda_stream)
            item = consumer.get(timeout_s=gpu_peers.TIMEOUT_S)
            item.wait(reading.cuda_stream)
            begun.record(reading)
            item.release()
            torch.cuda.synchronize()
            ages.append(written.elapsed_time(begun) * 1e3)
        rows = [{"between": "streams of one process", **spread(ages)}]
        with peer(gpu_peers.take_on_stream, name, ROUNDS) as pipe:
            hear(pipe)
            producer, consumer = Producer(pool, "there", segment=segment), Consumer(pool, "back")
            for _ in range(ROUNDS):
                lease = producer.lease((4096,), "uint8", timeout_s=gpu_peers.TIMEOUT_S)
                lease.publish(time.perf_counter_ns(), writing.cuda_stream)
                consumer.get(timeout_s=gpu_peers.TIMEOUT_S).release()
            rows.append({"between": "processes", **spread(hear(pipe))})
    return rows


def publish_from_device() -> Rows:
    """Time from the start of a copy into a lease until another process has the item."""
    rows = []
    source = torch.randint(0, 256, (ITEM_BYTES,), dtype=torch.uint8, device="cuda")
    for registered in (True, False):
        name = pool_name("publish")
        classes = [(4096, 4), (ITEM_BYTES, 4)]
        with Pool.create(name, classes=classes, rings=("there", "back")) as pool:
            if registered:
                cuda.register_host(pool, device=DEVICE)
            with peer(gpu_peers.consume, name, ROUNDS) as pipe:
                hear(pipe)
                producer, consumer = Producer(pool, "there"), Consumer(pool, "back")
                for _ in range(ROUNDS):
                    lease = producer.lease((ITEM_BYTES,), "uint8")
                    begun = time.perf_counter_ns()
                    torch.from_dlpack(lease).copy_(source, non_blocking=True)
                    event = torch.cuda.Event()
                    event.record()
                    event.synchronize()
                    lease.publish(begun)
                    consumer.get(timeout_s=gpu_peers.TIMEOUT_S).release()
                ages = hear(pipe)
                producer.close()
                consumer.close()
        kind = "registered" if registered else "unregistered"
        rows.append({"pool": kind, "bytes": ITEM_BYTES, **spread(ages)})
    return rows


FACTS = (
    devices,
    registration,
    host_copies,
    device_copies,
    shared_by_descriptor,
    shared_by_handle,
    latency_between_streams,
    publish_from_device,
)


def main() -> None:
    """Command line: see --help."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [function.__name__ for function in FACTS]
    parser.add_argument("--only", nargs="*", choices=names, default=names)
    parser.add_argument("--json", action="store_true", help="print only JSON lines")
    parser.add_argument("--report", type=Path, help="also write a page to this file")
    given = parser.parse_args()
    setting = conditions()
    print(json.dumps({"conditions": setting}), flush=True)
    if setting["why_not"]:
        raise SystemExit(f"gpu_facts: {setting['why_not']}")
    facts: dict[str, Rows | str] = {}
    texts = {function.__name__: (function.__doc__ or "").strip() for function in FACTS}
    for function in FACTS:
        name = function.__name__
        if name not in given.only:
            continue
        started = time.perf_counter()
        try:
            facts[name] = function()
        except Exception as error:
            facts[name] = f"{type(error).__name__}: {error}"
            if not given.json:
                traceback.print_exc()
        seconds = round(time.perf_counter() - started, 2)
        print(json.dumps({"fact": name, "seconds": seconds, "result": facts[name]}), flush=True)
        if given.report is not None:
            # Written after every fact, in case the machine becomes unavailable.
            given.report.parent.mkdir(parents=True, exist_ok=True)
            given.report.write_text(page(setting, facts, texts))
    failed = [name for name, result in facts.items() if isinstance(result, str)]
    print(json.dumps({"facts": len(facts), "failed": failed}), flush=True)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
