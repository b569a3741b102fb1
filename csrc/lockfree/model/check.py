"""Checks the models with SPIN; fails if a run has another outcome than it must.

python csrc/lockfree/model/check.py [--jobs N] [NAME ...]
"""

from __future__ import annotations

import argparse
import concurrent.futures
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
# Of the search tables of one run; the largest run needs a third.
MAX_MIB = 4096
MAX_DEPTH = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One search of all states: sizes and faults of the model, and the required outcome."""

    name: str
    sizes: dict[str, int] = field(default_factory=dict)
    model: str = "ring.pml"
    runs: bool = False
    """Also publish and take runs of two cells."""
    breaks: str = ""
    """Macro that breaks a part of the protocol; the search must then find a counterexample."""
    progress: bool = False
    """Look for an endless execution instead of a broken assertion."""
    macros: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        usual = {"PRODUCERS": 1, "CONSUMERS": 1, "REAPERS": 1, "CELLS": 1, "ITEMS": 1}
        usual |= {"CRASHES": 0, "STOPS": 0, "PUT_BACKS": 0}
        sizes = usual | self.sizes
        object.__setattr__(self, "macros", sizes | {"CAPACITY": sizes["CELLS"]})


TAKERS = {"CONSUMERS": 2, "ITEMS": 2, "CRASHES": 2}
PRODUCERS = {"PRODUCERS": 2, "CELLS": 2, "CRASHES": 2}
REAPERS = {"REAPERS": 2, "CRASHES": 2, "PUT_BACKS": 1}
PUT_BACK = {"CONSUMERS": 2, "CRASHES": 1, "PUT_BACKS": 2}
STOPS = {"CONSUMERS": 2, "ITEMS": 2, "CRASHES": 1, "STOPS": 1}
RUNS_TAKEN = {"CONSUMERS": 2, "CELLS": 2, "ITEMS": 2, "CRASHES": 1}
RUNS_DYING = {"CELLS": 2, "ITEMS": 2, "CRASHES": 2}
ENDLESS = {"CONSUMERS": 2, "CRASHES": 1, "STOPS": 1}
ENDLESS_PUSH = {"PRODUCERS": 2, "CELLS": 2, "STOPS": 1}
STREAMS = {"GENERATIONS": 3, "CRASHES": 2}
STREAMS_FROM_TWO = {"PRODUCERS": 2, "GENERATIONS": 2, "CRASHES": 1}
STREAMS_TO_TWO = {"CONSUMERS": 2, "GENERATIONS": 1, "CRASHES": 2}

RUNS = (
    Run(name="two producers, two cells, two die", sizes=PRODUCERS),
    Run(name="two takers, two die", sizes=TAKERS),
    Run(name="no endless execution, one dies, one stops", sizes=ENDLESS, progress=True),
    Run(name="two takers, one dies, one stops", sizes=STOPS),
    Run(name="runs, two takers, one dies", sizes=RUNS_TAKEN, runs=True),
    Run(name="runs, one taker, two die", sizes=RUNS_DYING, runs=True),
    Run(name="two reapers, an item put back, two die", sizes=REAPERS),
    Run(name="an item put back twice, one dies", sizes=PUT_BACK),
    Run(name="no endless execution of two pushes, one stops", sizes=ENDLESS_PUSH, progress=True),
    Run(name="without publishing", sizes=TAKERS, breaks="NO_PUBLISHING"),
    Run(name="without taking", sizes=TAKERS, breaks="NO_TAKING"),
    Run(name="without the re-check", sizes=TAKERS, breaks="NO_RECHECK"),
    Run(name="without the generation", sizes=TAKERS, breaks="NO_GENERATION"),
    Run(name="without the count of publications", sizes=PUT_BACK, breaks="NO_PUBLICATIONS"),
    Run(name="publishing read after the ring", sizes=TAKERS, breaks="PUBLISHING_AFTER_RING"),
    Run(name="redeliveries recognized by their attempt", sizes=REAPERS, breaks="BY_ATTEMPT"),
    Run(name="only a run's first cell settled", sizes=RUNS_DYING, runs=True, breaks="ONLY_FIRST"),
    Run(name="no wake is lost", model="event.pml"),
    Run(name="a look before the announcement", model="event.pml", breaks="LOOK_FIRST"),
    Run(name="the word read before the change", model="event.pml", breaks="READ_FIRST"),
    Run(name="a wake that leaves the word", model="event.pml", breaks="SAME_WORD"),
    Run(name="streams, three generations, two die", model="streams.pml", sizes=STREAMS),
    Run(name="streams, two producers, one dies", model="streams.pml", sizes=STREAMS_FROM_TWO),
    Run(name="streams, two consumers, two die", model="streams.pml", sizes=STREAMS_TO_TWO),
    Run(name="read before written", model="streams.pml", sizes=STREAMS, breaks="NO_ORDER"),
    Run(name="a process that runs on", model="streams.pml", sizes=STREAMS, breaks="TOO_EARLY"),
    Run(name="a slab not held", model="streams.pml", sizes=STREAMS_FROM_TWO, breaks="NO_HOLD"),
    Run(name="a write under way", model="streams.pml", sizes=STREAMS, breaks="EAGER"),
    Run(name="poison forgotten", model="streams.pml", sizes=STREAMS_TO_TWO, breaks="FORGETFUL"),
    Run(name="without the walk", sizes=ENDLESS_PUSH, breaks="NO_WALK", progress=True),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Result of a search."""

    states: int
    violation: str
    complete: bool
    seconds: float


def search(run: Run) -> Outcome:
    """Searches all states of one run.

    Raises:
        RuntimeError: SPIN or the compiler failed.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flowtrain-model-") as folder:
        macros = [f"-D{name}={value}" for name, value in run.macros.items()]
        macros += [f"-D{run.breaks}"] if run.breaks else []
        macros += ["-DRUNS"] if run.runs else []
        mode = ["-DNP", "-DNOSTUTTER"] if run.progress else ["-DSAFETY"]
        limits = ["-DCOLLAPSE", "-DVECTORSZ=2048", f"-DMEMLIM={MAX_MIB}"]
        # Waiting is no deadlock: the model asserts what must hold when no process can move.
        options = ["-E", f"-m{MAX_DEPTH}", "-w25", "-n", *(["-l"] if run.progress else [])]
        for command in (
            ["spin", "-a", *macros, str(FOLDER / run.model)],
            ["cc", "-O2", "-w", *mode, *limits, "-o", "pan", "pan.c"],
            ["./pan", *options],
        ):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                text = done.stdout + done.stderr
                raise RuntimeError(f"{run.name}: {' '.join(command)} failed:\n{text}")
    violation = re.search(r"pan:\d+: (.*) \(at depth", done.stdout)
    states = re.search(r"(\d+(?:\.\d+e\+\d+)?) states, stored", done.stdout)
    cut_short = "max search depth too small" in done.stdout or "memory limit" in done.stdout
    return Outcome(
        states=int(float(states[1])) if states else 0,
        violation=violation[1] if violation else "",
        complete=states is not None and not cut_short and "not completed" not in done.stdout,
        seconds=time.monotonic() - start,
    )


def is_expected(run: Run, outcome: Outcome) -> bool:
    """Whether a sound model was searched completely, or a broken one gave a counterexample."""
    if run.breaks:
        return bool(outcome.violation)
    return outcome.complete and not outcome.violation


def main() -> int:
    """Runs the selected searches; returns 0 if all outcomes are as required."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="select runs whose name contains one of these")
    parser.add_argument("--jobs", type=int, default=2, help="parallel searches (default: 2)")
    given = parser.parse_args()
    if shutil.which("spin") is None:
        print("model: spin is not installed; run: apt-get install spin", file=sys.stderr)
        return 2
    runs = [r for r in RUNS if not given.names or any(name in r.name for name in given.names)]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        for run, outcome in zip(runs, pool.map(search, runs), strict=True):
            good = is_expected(run, outcome)
            failed += not good
            found = outcome.violation or ("no violation" if outcome.complete else "cut short")
            print(
                f"{'ok  ' if good else 'FAIL'} {run.name}: {outcome.states} states, "
                f"{outcome.seconds:.0f} s: {found}",
                flush=True,
            )
    print(f"model: {len(runs) - failed} of {len(runs)} runs ended as required")
    return 1 if failed or not runs else 0


if __name__ == "__main__":
    sys.exit(main())
