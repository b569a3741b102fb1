"""Fault injection: kills and stops participants of the ring, and checks every item by a ledger."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import numpy

from flowtrain import progress
from flowtrain.bench.conditions import conditions
from flowtrain.bench.isolated import call

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
    """Inject faults, then measure an idle pool; with the conditions of the machine."""
    common = conditions()
    progress.show(f"killing {kills} and stopping {stops} participants, at most {seconds:g} s")
    found = inject_faults(
        kills=kills, stops=stops, seconds=seconds, seed=seed, tight=tight, without=without
    )
    progress.show("reclaiming from dead processes")
    return {"bench": "torture", **found, **idle_pool(), **common}


def inject_faults(
    *,
    kills: int,
    stops: int,
    seconds: float = 600.0,
    seed: int = 1,
    tight: bool = False,
    without: Without = "",
) -> dict[str, Any]:
    """Kill and stop participants of a ring, and count the faults that follow.

    Args:
        kills: Participants to kill (SIGKILL), of producers, consumers and reapers.
        stops: Participants to stop (SIGSTOP) during an operation, for 50 ms and until another one
            commits, at most a second.
        seconds: Injection ends after this time, even with faults left.
        seed: Seed of the random choices; the kernel's scheduling stays random.
        tight: One producer and one cell for all readers, instead of 64 cells, slabs made on demand
            and shrunk, and twice as many producers and consumers as cores.
        without: A part of the protocol to run without; faults must then follow.

    Returns:
        Counts by name. All of `FAULTS` are 0 if the ring is correct. `kills_in_window` is the
        share of kills during a push, a pop or a decision of a reaper; `longest_stall_ms` is the
        longest time between two commits, `stalled_by_stop` the number of stops of a second in which
        nothing was committed.

    Raises:
        ValueError: A number is out of range, or `without` is no part.
        RuntimeError: The process of the run failed.
    """
    for name, value, bits in (("kills", kills, 32), ("stops", stops, 32), ("seed", seed, 64)):
        if not 0 <= value < 1 << bits:
            raise ValueError(f"--{name} {value}: it must be from 0 to {(1 << bits) - 1}")
    if not 0 < seconds < math.inf:
        raise ValueError(f"--seconds {seconds}: it must be greater than 0, and finite")
    found: dict[str, Any] = call(
        "inject_faults",
        kills=kills,
        stops=stops,
        max_s=seconds,
        seed=seed,
        tight=tight,
        without=without,
    )
    return found


def idle_pool() -> dict[str, float]:
    """Measure the reclaim of a dead process's slab, and the CPU time of a waiting process.

    Returns:
        `reclaim_p50_ms` and `reclaim_p99_ms`, from the kill of a process that holds a slab until
        the slab is free, and `idle_cpu_percent` of a process that waits for an item.
    """
    times = call("reclaim_times_ms", kills=RECLAIMS)
    p50, p99 = numpy.percentile(times, (50, 99))
    return {
        "reclaim_p50_ms": round(float(p50), 3),
        "reclaim_p99_ms": round(float(p99), 3),
        "idle_cpu_percent": call("idle_cpu_percent", seconds=IDLE_S),
    }


def faults(found: dict[str, Any]) -> dict[str, int]:
    """Nonzero counts of `FAULTS`; empty if the ring is correct."""
    return {name: found[name] for name in FAULTS if found[name] != 0}
