"""How far from a proven bound are schedules of a step, and how long do they take?

Every policy and every peer that is installed, on all presets and five scales: samples / ranks /
microbatches of a rank; and, without a bar, ours on loads that no preset has. Times are processor
milliseconds of one thread; ours are of the whole Python call, a peer's of its function alone; of
CP-SAT, the clock's. What takes longer than --limit is null, there and on larger steps. A run can be
done in parts: with --rows, what is in the file is not measured again, and bars are judged over all
of it. Progress goes to stderr; the last line is JSON, with each bar's value. The exit status is 1
if a bar is not met.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from packing import elsewhere, lockstep, objectives, overhead, stream, two_modules
from packing.bars import Bar
from packing.cases import SCALES, Case
from packing.rows import Row, Rows, summary

from flowtrain.bench.conditions import conditions
from flowtrain.workloads import PRESETS

SEEDS = [6101, 6102, 6103, 6104, 6105]
PARTS = (
    lockstep.PART,
    objectives.PART,
    two_modules.PART,
    stream.PART,
    overhead.PART,
    elsewhere.PART,
)


def cases(given: argparse.Namespace) -> Iterator[Case]:
    """What was asked for, part by part, the smallest scale first."""
    for part in given.parts:
        scales, loads = given.scales, given.loads
        if part == two_modules.PART:
            scales = [two_modules.SCALE]
        elif part == elsewhere.PART:
            loads = elsewhere.LOADS
        elif part == stream.PART:
            scales, loads = [stream.SCALE], [load for load in stream.BARS if load in loads]
        elif part == overhead.PART:
            scales, loads = overhead.PAPER, [load for load in overhead.LOADS if load in loads]
        for scale, load, seed in itertools.product(scales, loads, given.seeds):
            yield Case(part=part, scale=scale, load=load, seed=seed)


def measure(given: argparse.Namespace, rows: Rows) -> None:
    measures = {
        lockstep.PART: lockstep.LockStep(rows, seconds=given.limit, ours_alone=given.ours).measure,
        objectives.PART: objectives.measure,
        two_modules.PART: two_modules.measure,
        stream.PART: stream.measure,
        overhead.PART: overhead.measure,
        elsewhere.PART: elsewhere.measure,
    }
    until = time.monotonic() + given.seconds
    todo = [case for case in cases(given) if case not in rows]
    for number, case in enumerate(todo):
        if time.monotonic() > until:
            print(f"{len(todo) - number} cases are left", file=sys.stderr, flush=True)
            return
        found = []
        for row in measures[case.part](case):
            print(f"{case} {figures(row)}", file=sys.stderr, flush=True)
            found.append(row)
        rows.add(case, found)


def figures(row: Row) -> str:
    """A row for people."""
    if "reason" in row:
        return f"{row['name']:26} null ({row['reason']})"
    return f"{row['name']:26} " + "  ".join(
        f"{key} {value:.4f}" if isinstance(value, float) else f"{key} {value}"
        for key, value in row.items()
        if key not in ("part", "scale", "load", "seed", "name")
    )


def judged(rows: Rows) -> Iterator[Bar]:
    """All bars that something was measured for."""
    known = {(row["part"], row["scale"]) for row in rows.all}
    for scale in SCALES:
        if (lockstep.PART, scale) in known:
            yield from lockstep.bars(rows, scale)
    for scale in SCALES:
        if (objectives.PART, scale) in known:
            yield from objectives.bars(rows, scale)
    if (two_modules.PART, two_modules.SCALE) in known:
        yield from two_modules.bars(rows)
    if (stream.PART, stream.SCALE) in known:
        yield from stream.bars(rows)
    for scale in overhead.PAPER:
        if (overhead.PART, scale) in known:
            yield from overhead.bars(rows, scale)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--scales", nargs="+", choices=SCALES, default=list(SCALES))
    parser.add_argument("--loads", nargs="+", choices=PRESETS, default=list(PRESETS))
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--limit", type=float, default=20.0, help="seconds of a peer on one step")
    parser.add_argument("--ours", action="store_true", help="flowtrain-best alone, no peers")
    parser.add_argument("--rows", type=Path, help="file of rows to go on with")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no case later")
    parser.add_argument("--json", action="store_true", help="print the last line alone")
    given = parser.parse_args()
    rows = Rows(given.rows)
    measure(given, rows)
    bars = list(judged(rows))
    results = list(summary(rows.all))
    if not given.json:
        for row in results:
            print(f"{row['part']:12} {row['scale']:12} {row['load']:12} {figures(row)}")
        for bar in bars:
            print(bar)
    last = {
        "conditions": {"seeds": sorted({row["seed"] for row in rows.all}), **conditions()},
        "comparable": lockstep.COMPARABLE,
        "bars": [bar.as_dict() for bar in bars],
        "results": results,
    }
    print(json.dumps(last))
    return 0 if all(bar.met for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
