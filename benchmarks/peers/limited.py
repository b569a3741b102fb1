"""Runs a call with limits of time and memory, in a process of its own."""

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
    """Result of a call, and its median time in milliseconds over half a second of runs.

    Measures CPU time of this thread or, with `wall`, the wall time of a single run. The first run
    counts only if there is no other, since a fresh process has pages to copy.
    """
    clock = time.perf_counter if wall else time.thread_time
    taken: list[float] = []
    spent = time.perf_counter()
    while not taken or (len(taken) < _RUNS and time.perf_counter() - spent < _SECONDS and not wall):
        start = clock()
        out = run()
        taken.append((clock() - start) * 1e3)
    return out, statistics.median(taken[1:] or taken)


def timed_alternately(*runs: Callable[[], Any]) -> list[list[float]]:
    """CPU time in milliseconds of each call, in rounds for half a second; row k is round k.

    Times within a round compare even if the speed of the core changes between rounds.
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
    """Result of a call, or why it failed, and whether a smaller step might succeed."""

    result: Any
    reason: str = ""
    too_large: bool = False


def limited(run: Callable[[], Any], *, seconds: float) -> Outcome:
    """Run a call in a forked process, which is killed after a time limit.

    Args:
        run: The call. It need not be picklable, but its result must be.
        seconds: Time limit.
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
