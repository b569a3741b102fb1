"""How soon a host notices that another one is lost, and what a stopped one does to both.

Two hosts by namespaces (root and iproute2) have a pool and a gateway each; items of 1 MiB go from
one to the other, or none. The gateway of the second host is killed, or the link is cut, again and
again: each time until the first one tells that the peer is lost. Then the receiving gateway, and
the reader, are stopped for a while. In the end every item must have come.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from two_hosts import LIMIT_S, Host, two_hosts, wait_for

from flowtrain.bench.conditions import conditions

PORT = 4711
SLABS, SLAB_BYTES = 16, 1 << 20
# Arguments: name of the pool.
OWNER = """
from flowtrain_core import Pool
import sys, time
with Pool.create(sys.argv[1], rings=("items",), max_lanes=64, label="owner"):
    time.sleep(3600)
"""
# Arguments: name of the host and its pool, whether it joins, address, port, interface.
GATEWAY = """
import asyncio, sys, time
from flowtrain.hosts import HostError, HostGateway, Identity
from flowtrain_core import Pool
async def main(host, does, address, port, interface):
    pool = Pool.open(host, label="gateway", timeout_s=30)
    own = Identity(host=host, version="1", job="j", incarnation="1", tower="t", processor="p")
    def tell(text):
        print(time.monotonic(), text, flush=True)
    gateway = HostGateway(pool, own, b"token", interface=interface, tell=tell)
    if does == "join":
        while True:
            try:
                await gateway.join(address, port, timeout_s=60)
            except HostError as error:
                tell(error)
    await gateway.listen(address, port)
    tell("listens")
    await gateway.failure()
asyncio.run(main(*sys.argv[1:4], int(sys.argv[4]), sys.argv[5]))
"""
# Arguments: pool, slabs, their bytes. Stops when its input ends.
PRODUCE = """
import select, sys
from flowtrain_core import Pool, Producer
name, slabs, size = sys.argv[1], *map(int, sys.argv[2:4])
pool = Pool.open(name, timeout_s=30)
pool.add_segment(classes=[(size, slabs)])
producer, key = Producer(pool, ring="items"), 0
while not select.select([sys.stdin], [], [], 0)[0]:
    lease = producer.lease((size // 8,), "uint64", timeout_s=600)
    view = memoryview(lease)
    view[0] = view[size // 8 - 1] = key
    del view
    lease.publish(key)
    key += 1
producer.drain(timeout_s=600)
print("published", key, flush=True)
"""
# Arguments: pool.
CONSUME = """
import sys
from flowtrain_core import Consumer, Pool
pool = Pool.open(sys.argv[1], timeout_s=30)
consumer, seen, repeated, damaged = Consumer(pool, ring="items"), set(), 0, 0
while True:
    item = consumer.get(timeout_s=3600)
    view = memoryview(item)
    damaged += not view[0] == view[len(view) - 1] == item.key
    del view
    repeated += item.key in seen
    seen.add(item.key)
    item.release()
    print("read", len(seen), repeated, damaged, flush=True)
"""


class Log:
    """Output of a process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def text(self, since: int = 0) -> str:
        return self.path.read_text()[since:] if self.path.exists() else ""

    def wait_for(self, pattern: str, since: int = 0) -> re.Match[str]:
        return wait_for(self.path, pattern, since)


class Process:
    """A Python program on a host."""

    def __init__(self, host: Host, folder: Path, name: str, code: str, *given: object) -> None:
        self.log = Log(folder / name)
        command = (sys.executable, "-c", code, *given)
        self._popen = host.popen(*command, log=self.log.path, stdin=subprocess.PIPE)
        end = time.monotonic() + LIMIT_S
        while not (children := Host.children(self._popen.pid)):
            assert time.monotonic() < end
            time.sleep(0.002)
        self.pid = children[0]

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self._popen.wait(LIMIT_S)

    def close_input(self) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.close()

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


class Pair:
    """Pools and gateways of two hosts."""

    def __init__(self, here: Host, there: Host, folder: Path) -> None:
        self.here, self.there, self.folder = here, there, folder
        for host in (here, there):
            Process(host, folder, f"owner-{host.name}", OWNER, host.name)
        self.listening = self._gateway(here, "listen")
        self.listening.log.wait_for("listens")
        self.joining = self._gateway(there, "join")
        self.wait_connected(0)

    def _gateway(self, host: Host, does: str) -> Process:
        given = (host.name, does, self.here.address, PORT, host.address)
        return Process(host, self.folder, f"gateway-{host.name}", GATEWAY, *given)

    def wait_connected(self, since: int) -> None:
        self.listening.log.wait_for("host there is connected", since)

    def lose(self, event: str) -> float:
        """Kill the other gateway or cut the link; the time until it is told, in seconds."""
        log = self.listening.log
        since, start = len(log.text()), time.monotonic()
        if event == "kill":
            self.joining.kill()
        else:
            self.here.ip("link", "set", self.here.device, "down")
        told = float(log.wait_for(r"(\S+) host there .*(is lost|has ended)", since)[1])
        if event == "kill":
            self.joining = self._gateway(self.there, "join")
        else:
            self.here.ip("link", "set", self.here.device, "up")
        self.wait_connected(since)
        return told - start


def count_of(reader: Process) -> list[int]:
    """Items that were read, that were repeated, and that were damaged."""
    found = re.findall(r"read (\d+) (\d+) (\d+)\n", reader.log.text())
    return [int(n) for n in found[-1]] if found else [0, 0, 0]


def wait_for_items(reader: Process, more: int) -> None:
    goal, end = count_of(reader)[0] + more, time.monotonic() + LIMIT_S
    while count_of(reader)[0] < goal:
        assert time.monotonic() < end, reader.log.text()[-200:]
        time.sleep(0.01)


def losses(pair: Pair, state: str, tries: int, reader: Process | None) -> list[dict[str, Any]]:
    rows = []
    for event in ("kill", "cut"):
        seconds = []
        for _ in range(tries):
            if reader is not None:
                wait_for_items(reader, 2 * SLABS)
            seconds.append(pair.lose(event))
        rows.append(
            {
                "event": event,
                "state": state,
                "tries": tries,
                "p50_s": round(statistics.median(seconds), 3),
                "max_s": round(max(seconds), 3),
            }
        )
    return rows


def stopped(pair: Pair, what: str, process: Process, reader: Process, hold_s: float) -> Any:
    """Stop a process under bulk for a while; what it did to both hosts."""
    wait_for_items(reader, 2 * SLABS)
    gateways = (pair.listening, pair.joining)
    log, since = pair.listening.log, len(pair.listening.log.text())
    process.send(signal.SIGSTOP)
    time.sleep(2.0)
    before, resident = count_of(reader)[0], [each.resident_bytes() for each in gateways]
    time.sleep(hold_s - 2.0)
    after, grown = count_of(reader)[0], [each.resident_bytes() for each in gateways]
    process.send(signal.SIGCONT)
    wait_for_items(reader, 2 * SLABS)
    told = log.text(since)
    return {
        "event": f"{what} stopped",
        "hold_s": hold_s,
        "told": "does not answer" in told,
        "lost": "is lost" in told,
        "read_meanwhile": after - before,
        "gateways_grew_bytes": max(b - a for a, b in zip(resident, grown, strict=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=20, help="of each kind (default: 20)")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="flowtrain-hosts-"))
    try:
        with two_hosts() as (here, there):
            pair = Pair(here, there, folder)
            rows: list[Any] = losses(pair, "idle", given.tries, None)
            reader = Process(there, folder, "reader", CONSUME, there.name)
            size = (here.name, SLABS, SLAB_BYTES)
            producer = Process(here, folder, "producer", PRODUCE, *size)
            rows += losses(pair, "bulk", given.tries, reader)
            rows.append(stopped(pair, "receiving gateway", pair.joining, reader, 10.0))
            rows.append(stopped(pair, "reader", reader, reader, 30.0))
            producer.close_input()
            published = int(producer.log.wait_for(r"published (\d+)")[1])
            read, repeated, damaged = count_of(reader)
            end = {"published": published, "lost": published - read}
            end |= {"repeated": repeated, "damaged": damaged}
        print(json.dumps({"benchmark": "hosts", "rows": rows, **end, **conditions()}))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
