"""Runs what may take too long, or too much memory, in a process of its own."""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

_MEMORY_BYTES = 6 << 30
_RUNS, _SECONDS = 30, 0.5


def timed(run: Callable[[], Any], *, wall: bool = False) -> tuple[Any, float]:
    """What it returns, and the median of its milliseconds over the runs of half a second.

    Processor time of this thread; by the clock, one run. The first run counts only if there is
    time for no other: a fresh process has pages to copy.
    """
    clock = time.perf_counter if wall else time.thread_time
    taken: list[float] = []
    spent = time.perf_counter()
    while not taken or (len(taken) < _RUNS and time.perf_counter() - spent < _SECONDS and not wall):
        start = clock()
        out = run()
        taken.append((clock() - start) * 1e3)
    return out, statistics.median(taken[1:] or taken)


def timed_in_turn(*runs: Callable[[], Any]) -> list[list[float]]:
    """Milliseconds of each, of runs that take turns for half a second: row k is of round k.

    Processor time of this thread. Where a core's pace changes, the rounds can be compared.
    """
    rounds: list[list[float]] = []
    spent = time.perf_counter()
    while len(rounds) < 2 or (len(rounds) < _RUNS and time.perf_counter() - spent < _SECONDS):
        rounds.append([])
        for run in runs:
            start = time.thread_time()
            run()
            rounds[-1].append((time.thread_time() - start) * 1e3)
    return rounds[1:]


class Outcome(NamedTuple):
    """What a call returned, or why it did not, and whether a smaller step might go."""

    result: Any
    reason: str = ""
    too_large: bool = False


def limited(run: Callable[[], Any], *, seconds: float) -> Outcome:
    """Call something in a forked process, which is killed when its time is over.

    Args:
        run: Need not be pickled, since the process is forked; what it returns must be.
        seconds: Its time.
    """
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_child, args=(theirs, run))
    process.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            return Outcome(None, f"longer than {seconds:g} s", too_large=True)
        outcome: Outcome = ours.recv()
        return outcome
    except EOFError:
        return Outcome(None, "its process died", too_large=True)
    finally:
        process.kill()
        process.join()
        ours.close()


def _child(out: Connection, run: Callable[[], Any]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    try:
        out.send(Outcome(run()))
    except MemoryError:
        out.send(Outcome(None, f"more than {_MEMORY_BYTES >> 30} GiB", too_large=True))
    except Exception as error:  # A peer's failure is its result.
        out.send(Outcome(None, f"{type(error).__name__}: {error}"))
