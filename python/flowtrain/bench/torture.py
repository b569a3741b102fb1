"""The ring under kills and stops at random instructions, by a ledger outside the pool."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy

from flowtrain.bench.alone import call
from flowtrain.bench.conditions import conditions

Without = Literal["", "publishing", "taking", "re-check", "generation"]
PARTS = get_args(Without)[1:]

FAULTS = ("lost", "committed_twice", "corrupt", "crashed", "leaked_slabs", "leaked_bytes")
RECLAIMS = 100
IDLE_S = 3.0


def run(
    *,
    kills: int,
    stops: int,
    seconds: float = 600.0,
    seed: int = 1,
    tight: bool = False,
    without: Without = "",
) -> dict[str, Any]:
    """A storm, then what a death and a wait cost at rest, with the conditions of both."""
    common = conditions()
    found = storm(
        kills=kills, stops=stops, seconds=seconds, seed=seed, tight=tight, without=without
    )
    return {"bench": "torture", **found, **at_rest(), **common}


def storm(
    *,
    kills: int,
    stops: int,
    seconds: float = 600.0,
    seed: int = 1,
    tight: bool = False,
    without: Without = "",
) -> dict[str, Any]:
    """Kill and stop participants of a ring, and count what went wrong.

    Args:
        kills: Participants to kill (SIGKILL), of producers, consumers and reapers.
        stops: Participants to stop for 50 ms (SIGSTOP) in the middle of an operation.
        seconds: The storm ends then, whatever was done by then.
        seed: Of the choices; when the kernel runs whom is its own.
        tight: One producer and one cell for all readers, instead of 64 cells and twice as many
            producers and consumers as cores.
        without: A part of the protocol to leave out, which must then lead to faults.

    Returns:
        Counts by name. All of `FAULTS` are 0 if the ring holds. `kills_in_window` is the share of
        kills that hit a push, a pop or a judgement; `longest_stall_ms` is the longest time
        between two commits, `stalled_by_stop` the number of stops during which there was none.

    Raises:
        ValueError: A number is negative, or `without` is no part.
        RuntimeError: The program that runs it failed.
    """
    if min(kills, stops) < 0 or seconds <= 0:
        raise ValueError(
            f"torture: kills={kills}, stops={stops} and seconds={seconds} must be at least 0"
        )
    found: dict[str, Any] = call(
        "_storm",
        kills=kills,
        stops=stops,
        most_s=seconds,
        seed=seed,
        tight=tight,
        without=without,
    )
    return found


def at_rest() -> dict[str, float]:
    """What a death and a wait cost on a pool that is otherwise idle.

    Returns:
        `reclaim_p50_ms` and `reclaim_p99_ms`, from the kill of a process that holds a slab until
        the slab is free, and `idle_cpu_percent` of a process that waits for an item.
    """
    times = call("_reclaim_times_ms", kills=RECLAIMS)
    p50, p99 = numpy.percentile(times, (50, 99))
    return {
        "reclaim_p50_ms": round(float(p50), 3),
        "reclaim_p99_ms": round(float(p99), 3),
        "idle_cpu_percent": call("_idle_cpu_percent", seconds=IDLE_S),
    }


def faults(found: dict[str, Any]) -> dict[str, int]:
    """What must not be, of what torture returned; empty if the ring held."""
    return {name: found[name] for name in FAULTS if found[name] != 0}
