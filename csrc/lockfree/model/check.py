"""Checks every run of the models of ring and event with SPIN; fails where one ends as it must not.

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
# The search tables of one run: the largest run needs a third of it.
MOST_MIB = 4096
DEEPEST = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One search of all states: sizes and faults of the model, and how it must end."""

    name: str
    sizes: dict[str, int] = field(default_factory=dict)
    model: str = "ring.pml"
    runs: bool = False
    """Cells travel in runs of two, too."""
    breaks: str = ""
    """Macro that removes a part of the protocol: then there must be a counterexample."""
    progress: bool = False
    """Look for an endless execution instead of a broken assertion."""
    macros: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        usual = {"PRODUCERS": 1, "CONSUMERS": 1, "REAPERS": 1, "CELLS": 1, "ITEMS": 1}
        usual |= {"CRASHES": 0, "STOPS": 0, "BOUNCES": 0}
        sizes = usual | self.sizes
        object.__setattr__(self, "macros", sizes | {"CAPACITY": sizes["CELLS"]})


TAKERS = {"CONSUMERS": 2, "ITEMS": 2, "CRASHES": 2}
PRODUCERS = {"PRODUCERS": 2, "CELLS": 2, "CRASHES": 2}
REAPERS = {"REAPERS": 2, "CRASHES": 2, "BOUNCES": 1}
PUT_BACK = {"CONSUMERS": 2, "CRASHES": 1, "BOUNCES": 2}
STOPS = {"CONSUMERS": 2, "ITEMS": 2, "CRASHES": 1, "STOPS": 1}
RUNS_TAKEN = {"CONSUMERS": 2, "CELLS": 2, "ITEMS": 2, "CRASHES": 1}
RUNS_DYING = {"CELLS": 2, "ITEMS": 2, "CRASHES": 2}
ENDLESS = {"CONSUMERS": 2, "CRASHES": 1, "STOPS": 1}
ENDLESS_PUSH = {"PRODUCERS": 2, "CELLS": 2, "STOPS": 1}

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
    Run(name="without pin", sizes=TAKERS, breaks="NO_PIN"),
    Run(name="without cin", sizes=TAKERS, breaks="NO_CIN"),
    Run(name="without the re-check", sizes=TAKERS, breaks="NO_RECHECK"),
    Run(name="without the generation", sizes=TAKERS, breaks="NO_GENERATION"),
    Run(name="without the count of publications", sizes=PUT_BACK, breaks="NO_PUBLICATIONS"),
    Run(name="pin looked at after the ring", sizes=TAKERS, breaks="PIN_AFTER_RING"),
    Run(name="redeliveries told by their attempt", sizes=REAPERS, breaks="BY_ATTEMPT"),
    Run(name="of a run, the first settled", sizes=RUNS_DYING, runs=True, breaks="ONLY_FIRST"),
    Run(name="no wake is lost", model="event.pml"),
    Run(name="a look before the announcement", model="event.pml", breaks="LOOK_FIRST"),
    Run(name="the word read before the change", model="event.pml", breaks="READ_FIRST"),
    Run(name="a wake that leaves the word", model="event.pml", breaks="SAME_WORD"),
    Run(name="without the walk", sizes=ENDLESS_PUSH, breaks="NO_WALK", progress=True),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What SPIN found."""

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
        limits = ["-DCOLLAPSE", "-DVECTORSZ=2048", f"-DMEMLIM={MOST_MIB}"]
        # Waiting is no deadlock: the model itself says what must hold when nobody can move.
        options = ["-E", f"-m{DEEPEST}", "-w25", "-n", *(["-l"] if run.progress else [])]
        for command in (
            ["spin", "-a", *macros, str(FOLDER / run.model)],
            ["cc", "-O3", "-w", *mode, *limits, "-o", "pan", "pan.c"],
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


def is_as_it_must(run: Run, outcome: Outcome) -> bool:
    """Whether a sound model was searched to its end, and a broken one gave a counterexample."""
    if run.breaks:
        return bool(outcome.violation)
    return outcome.complete and not outcome.violation


def main() -> int:
    """Run what was asked for; 0 if every run ended as it must."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="runs whose name holds one of these")
    parser.add_argument("--jobs", type=int, default=2, help="searches at a time (default: 2)")
    given = parser.parse_args()
    if shutil.which("spin") is None:
        print("model: spin is not installed; run: apt-get install spin", file=sys.stderr)
        return 2
    runs = [r for r in RUNS if not given.names or any(name in r.name for name in given.names)]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        for run, outcome in zip(runs, pool.map(search, runs), strict=True):
            good = is_as_it_must(run, outcome)
            failed += not good
            found = outcome.violation or ("no violation" if outcome.complete else "cut short")
            print(
                f"{'ok  ' if good else 'FAIL'} {run.name}: {outcome.states} states, "
                f"{outcome.seconds:.0f} s: {found}",
                flush=True,
            )
    print(f"model: {len(runs) - failed} of {len(runs)} runs ended as they must")
    return 1 if failed or not runs else 0


if __name__ == "__main__":
    sys.exit(main())
