"""The second process of each fact in `gpu_facts.py`; spawned, as CUDA does not survive a fork."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from flowtrain_core import Consumer, Pool, Producer

TIMEOUT_S = 60.0
SLAB = 4 << 20
# Numbers of the segments of a pool that has memory of both kinds.
HOST_SEGMENT, DEVICE_SEGMENT = 1, 2


@contextmanager
def peer(target: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    """Run `target(pipe, *arguments)` in another process; `hear` raises its errors here."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_run, args=(target, there, arguments)
    )
    process.start()
    there.close()
    try:
        yield here
    finally:
        here.close()
        process.join(TIMEOUT_S)
        if process.is_alive():
            process.kill()
            process.join()


def _run(target: Callable[..., None], pipe: Connection, arguments: tuple[Any, ...]) -> None:
    try:
        target(pipe, *arguments)
    except Exception as error:
        pipe.send(error if isinstance(error, RuntimeError) else RuntimeError(repr(error)))


def hear(pipe: Connection) -> Any:
    """Receive a message of the peer, or raise its error."""
    if not pipe.poll(TIMEOUT_S):
        raise TimeoutError(f"the other process sent nothing for {TIMEOUT_S} s")
    said = pipe.recv()
    if isinstance(said, Exception):
        raise said
    return said


def pattern(nbytes: int, seed: int) -> Any:
    """Random bytes of a seed, on the device, shape [nbytes]."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device="cuda", generator=generator)


def exchange(pool: Pool, segment: int, nbytes: int) -> dict[str, Any]:
    """Hand the only slab of a segment on a device to another process and back, checking its bytes.

    Returns:
        Of the other process, `import_and_map_ms`, `close_ms` and `wrong_bytes_there`; and
        `wrong_bytes_here`.
    """
    import torch

    producer = Producer(pool, segment=segment)
    with peer(answer, pool.name) as pipe:
        hear(pipe)
        lease = producer.lease((nbytes,), "uint8", timeout_s=TIMEOUT_S)
        torch.from_dlpack(lease).copy_(pattern(nbytes, 1))
        torch.cuda.synchronize()
        lease.publish(0)
        pipe.send("take")
        theirs: dict[str, Any] = hear(pipe)
    # The memory stays intact after the other process unmapped it.
    lease = producer.lease((nbytes,), "uint8", timeout_s=TIMEOUT_S)
    data = torch.from_dlpack(lease)
    wrong = int((data != pattern(nbytes, 2)).sum())
    del data
    lease.abort()
    return {**theirs, "wrong_bytes_here": wrong}


def answer(pipe: Connection, name: str) -> None:
    """Take one item in memory of a device, check its bytes, and write others in their place."""
    import torch

    torch.zeros(1, device="cuda")  # Makes the context, which is not timed.
    pool = Pool.open(name, timeout_s=TIMEOUT_S)
    pipe.send("ready")
    pipe.recv()
    started = time.perf_counter()
    item = Consumer(pool).get(timeout_s=TIMEOUT_S)
    took_ms = (time.perf_counter() - started) * 1e3
    data = torch.from_dlpack(item)
    wrong = int((data != pattern(len(data), 1)).sum())
    data.copy_(pattern(len(data), 2))
    torch.cuda.synchronize()
    del data
    item.release()
    del item
    started = time.perf_counter()
    pool.close()
    closed_ms = (time.perf_counter() - started) * 1e3
    pipe.send({"import_and_map_ms": took_ms, "close_ms": closed_ms, "wrong_bytes_there": wrong})


def take_on_stream(pipe: Connection, name: str, rounds: int) -> None:
    """Have a stream wait for each item; its key is its start time. Sends the ages in us."""
    import torch

    pool = Pool.open(name, timeout_s=TIMEOUT_S)
    consumer, producer = Consumer(pool, "there"), Producer(pool, "back", segment=HOST_SEGMENT)
    stream = torch.cuda.Stream()
    pipe.send("ready")
    ages = []
    for _ in range(rounds):
        item = consumer.get(timeout_s=TIMEOUT_S)
        item.wait(stream.cuda_stream)
        item.release()
        stream.synchronize()
        ages.append((time.perf_counter_ns() - item.key) / 1e3)
        producer.lease((1,), "uint8").publish(0)
    pipe.send(ages)


def consume(pipe: Connection, name: str, rounds: int) -> None:
    """Take every item; its key is its start time. Sends the ages in microseconds."""
    pool = Pool.open(name, timeout_s=TIMEOUT_S)
    consumer, producer = Consumer(pool, "there"), Producer(pool, "back")
    pipe.send("ready")
    ages = []
    for _ in range(rounds):
        with consumer.get(timeout_s=TIMEOUT_S) as item:
            ages.append((time.perf_counter_ns() - item.key) / 1e3)
        producer.lease((1,), "uint8").publish(0)
    pipe.send(ages)


def publish_late(pipe: Connection, name: str, seconds: float) -> None:
    """Enqueue a delay, a pattern and its publication; then finish, or die."""
    import torch

    pool = Pool.open(name, timeout_s=TIMEOUT_S)
    stream = torch.cuda.Stream()
    lease = Producer(pool, segment=DEVICE_SEGMENT).lease((SLAB,), "uint8", timeout_s=TIMEOUT_S)
    data = pattern(SLAB, 3)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(int(seconds * 2e9))  # Cycles of about 2 GHz.
        torch.from_dlpack(lease).copy_(data)
    lease.publish(7)
    pipe.send("submitted")
    if pipe.recv() == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    stream.synchronize()
