"""The other process of each fact in `gpu_facts.py`, started by spawn; none forks a CUDA process."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from flowtrain_core import Consumer, Pool, Producer, cuda

PATIENCE_S = 60.0


@contextmanager
def peer(target: Callable[..., None], *arguments: Any) -> Iterator[Connection]:
    """Runs `target(pipe, *arguments)` in another process; what it raises arrives by `hear`."""
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
        process.join(PATIENCE_S)
        if process.is_alive():
            process.kill()
            process.join()


def _run(target: Callable[..., None], pipe: Connection, arguments: tuple[Any, ...]) -> None:
    try:
        target(pipe, *arguments)
    except Exception as error:
        pipe.send(error if isinstance(error, RuntimeError) else RuntimeError(repr(error)))


def hear(pipe: Connection) -> Any:
    """What the peer sends; its error is raised here."""
    if not pipe.poll(PATIENCE_S):
        raise TimeoutError(f"the other process said nothing for {PATIENCE_S} s")
    said = pipe.recv()
    if isinstance(said, Exception):
        raise said
    return said


def pattern(nbytes: int, seed: int) -> Any:
    """Bytes that no other seed has, on the device, shape [nbytes]."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device="cuda", generator=generator)


def _check_and_answer(pipe: Connection, segment: Any, took_ms: float, nbytes: int) -> None:
    """Compare what the other process wrote, write an answer, and close when it was read."""
    import torch

    data = torch.as_tensor(segment, device="cuda")[:nbytes]
    wrong = int((data != pattern(nbytes, 1)).sum())
    data.copy_(pattern(nbytes, 2))
    torch.cuda.synchronize()
    del data
    pipe.send({"took_ms": took_ms, "wrong_bytes": wrong})
    pipe.recv()
    started = time.perf_counter()
    segment.close()
    pipe.send((time.perf_counter() - started) * 1e3)


def map_descriptor(pipe: Connection, path: str, nbytes: int, checked: int) -> None:
    """Maps the segment that is served at `path`."""
    import torch

    torch.zeros(1, device="cuda")  # The context is no part of what is timed.
    pipe.send("ready")
    pipe.recv()
    started = time.perf_counter()
    segment = cuda.Segment.receive(path, nbytes, device=0)
    _check_and_answer(pipe, segment, (time.perf_counter() - started) * 1e3, checked)


def open_handle(pipe: Connection, handle: bytes, nbytes: int, checked: int) -> None:
    """Opens the segment of a legacy handle."""
    import torch

    torch.zeros(1, device="cuda")
    pipe.send("ready")
    pipe.recv()
    started = time.perf_counter()
    segment = cuda.IpcSegment.open(handle, nbytes, device=0)
    _check_and_answer(pipe, segment, (time.perf_counter() - started) * 1e3, checked)


def spin(pipe: Connection, path: str, answer: str, rounds: int) -> None:
    """Sees each value of a word, notes when, and answers by a word of processors alone."""
    word, back = cuda.Word.receive(path), cuda.Word.receive(answer)
    pipe.send("ready")
    seen = []
    for value in range(1, rounds + 1):
        if word.wait(value, timeout_s=PATIENCE_S) is None:
            raise TimeoutError(f"value {value} was not seen in {PATIENCE_S} s")
        seen.append(time.perf_counter_ns())
        back.store(value)
    pipe.send(seen)


def consume(pipe: Connection, name: str, rounds: int) -> None:
    """Takes every item; its key is when it was begun. Sends ages in microseconds."""
    pool = Pool.open(name, timeout_s=PATIENCE_S)
    consumer, producer = Consumer(pool, "there"), Producer(pool, "back")
    pipe.send("ready")
    ages = []
    for _ in range(rounds):
        with consumer.get(timeout_s=PATIENCE_S) as item:
            ages.append((time.perf_counter_ns() - item.key) / 1e3)
        producer.lease((1,), "uint8").publish(0)
    pipe.send(ages)


def set_word(pipe: Connection, path: str, value: int | None) -> None:
    """Stores a value in a word of another process, or poisons it where there is none."""
    with cuda.Word.receive(path) as word:
        if value is None:
            word.poison()
        else:
            word.store(value)
    pipe.send("done")
