"""Runs what may take too long, or too much memory, in a process of its own."""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_MEMORY_BYTES = 6 << 30


def timed(run: Callable[[], Any], *, wall: bool = False) -> tuple[Any, float]:
    """What it returns, and the median of its milliseconds over up to five runs; by the clock one.

    The first run counts only if there is time for no other: a fresh process has pages to copy.
    """
    clock = time.perf_counter if wall else time.thread_time
    taken: list[float] = []
    spent = time.perf_counter()
    while not taken or (len(taken) < 6 and time.perf_counter() - spent < 0.5 and not wall):
        start = clock()
        out = run()
        taken.append((clock() - start) * 1e3)
    return out, statistics.median(taken[1:] or taken)


def limited(
    run: Callable[..., Any], args: tuple[Any, ...], *, seconds: float, wall: bool
) -> tuple[Any, float | None, str]:
    """What a call returns and its milliseconds, or why it did not return.

    Args:
        run: Called with `args` in a forked process, so that neither need be pickled.
        args: Its arguments.
        seconds: Time after which it is killed; quick calls are repeated for half a second.
        wall: Whether to time it by the clock, and not by the processor time of its thread.

    Returns:
        Result, milliseconds and "", or None, None and the reason.
    """
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_child, args=(theirs, run, args, wall)
    )
    process.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            return None, None, f"longer than {seconds:g} s"
        result, taken, reason = ours.recv()
        return result, taken, reason
    except EOFError:
        return None, None, "its process died"
    finally:
        process.kill()
        process.join()
        ours.close()


def _child(out: Connection, run: Callable[..., Any], args: tuple[Any, ...], wall: bool) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    try:
        result, taken = timed(lambda: run(*args), wall=wall)
        out.send((result, taken, ""))
    except Exception as error:  # A peer's failure is its result.
        out.send((None, None, f"{type(error).__name__}: {error}"))
