"""Is the partition the best one, how long does it take, and what is its objective worth?

Models are drawn from seeds (`partition/instances.py`). `max_regret` is how far the solver's step is
above the minimum of an enumeration of all cuts and levels, 24 layers and 6 stages among them, as a
share. `ms_100x16` is processor time of one call from Python. `formula_over_replay` is the solver's
objective divided by a replay of 1F1B of the same partition, below 1 where the objective promises
too much, with stages that are busy while they send, or that send beside computing (`overlapped`).
`omnibal_over_exact` compares the steps of these policies by the objective; by replay,
`exact_over_replayed` and `omnibal_over_replayed`. The last line is JSON. The exit status is 1 if a
bar is not met.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator

import numpy
from packing.bars import Bar
from partition.instances import KINDS, Instance, instance
from partition.oracle import best_step_s

from flowtrain.bench.conditions import conditions
from flowtrain.plan.partition import NoPartitionError, Partition, partition

SMALL = ((6, 2), (8, 4), (10, 3), (12, 5))
LARGE = (24, 6)
SIZES = ((24, 4), (60, 8), (100, 16))


def cut(drawn: Instance, policy: str = "exact") -> Partition | None:
    try:
        return partition(drawn.layers, **drawn.arguments, policy=policy)
    except NoPartitionError:
        return None


def regrets(sizes: tuple[tuple[int, int], ...], seeds: range) -> Iterator[float]:
    """How far each partition is above the enumerated minimum; infinite if only one has any."""
    for kind in KINDS:
        for layers, stages in sizes:
            for seed in seeds:
                drawn = instance(kind, layers=layers, stages=stages, seed=seed)
                expected = best_step_s(drawn.layers, **drawn.arguments)
                found = cut(drawn)
                if found is not None:
                    yield abs(found.step_s / expected - 1) if expected < math.inf else math.inf
                elif expected < math.inf:
                    yield math.inf


def milliseconds(seeds: range, policy: str, repeats: int) -> Iterator[float]:
    """Processor time of 100 layers and 16 stages, the median of some calls for each model."""
    for kind in KINDS:
        for seed in seeds:
            drawn = instance(kind, layers=100, stages=16, seed=seed)
            if cut(drawn) is None:
                continue
            times = []
            for _ in range(repeats):
                start = time.process_time()
                cut(drawn, policy)
                times.append(1e3 * (time.process_time() - start))
            yield float(numpy.median(times))


def compared(kind: str, seeds: range) -> Iterator[dict[str, float]]:
    """Ratios of objective, replay and policies for each model that has a partition."""
    for layers, stages in SIZES:
        for seed in seeds:
            drawn = instance(kind, layers=layers, stages=stages, seed=seed)
            exact, replayed = cut(drawn), cut(drawn, "replayed")
            if exact is None or replayed is None:
                continue
            omnibal = cut(drawn, "omnibal")
            yield {
                "formula_over_replay": exact.step_s / exact.replay_s(),
                "formula_over_replay_overlapped": exact.step_s / exact.replay_s(overlapped=True),
                "omnibal_over_exact": omnibal.step_s / exact.step_s if omnibal else math.nan,
                "exact_over_replayed": exact.replay_s() / replayed.replay_s(),
                "omnibal_over_replayed": (
                    omnibal.replay_s() / replayed.replay_s() if omnibal else math.nan
                ),
            }


def summary(rows: list[dict[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {"models": len(rows)}
    for name in rows[0]:
        values = numpy.array([row[name] for row in rows])
        values = values[~numpy.isnan(values)]
        found[f"{name}_least"] = round(float(values.min()), 4)
        found[f"{name}_median"] = round(float(numpy.median(values)), 4)
        found[f"{name}_worst"] = round(float(values.max()), 4)
    found["omnibal_fits_nowhere"] = sum(math.isnan(row["omnibal_over_exact"]) for row in rows)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=50, help="of each kind and size; 5 or more")
    parser.add_argument("--large", type=int, default=2, help="of 24 layers and 6 stages, by kind")
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    given = parser.parse_args()
    seeds = range(given.seeds)
    away = [*regrets(SMALL, seeds), *regrets((LARGE,), range(given.large))]
    times = list(milliseconds(seeds, "exact", 5))
    replayed_times = list(milliseconds(range(given.seeds // 5), "replayed", 1))
    by_kind = {kind: list(compared(kind, seeds)) for kind in KINDS}
    results = {kind: summary(rows) for kind, rows in by_kind.items()}
    results["all"] = summary([row for rows in by_kind.values() for row in rows])
    bars = [
        Bar(name="regret over enumeration", value=max(away), bar=1e-12),
        Bar(name="ms, 100 layers, 16 stages, slowest model", value=max(times), bar=10),
    ]
    if not given.json:
        names = [name for name in results["all"] if name != "models"]
        print(f"{'':<38}" + "".join(f"{kind:>10}" for kind in results))
        for name in ("models", *names):
            print(f"{name:<38}" + "".join(f"{row[name]:>10}" for row in results.values()))
        for bar in bars:
            print(bar)
    last = {
        "max_regret": max(away),
        "enumerated": len(away),
        "ms_100x16": round(float(numpy.median(times)), 2),
        "ms_100x16_worst": round(max(times), 2),
        "ms_100x16_replayed": round(float(numpy.median(replayed_times))),
        "ms_100x16_replayed_worst": round(max(replayed_times)),
        **results["all"],
        "kinds": {kind: results[kind] for kind in KINDS},
        "bars": [bar.as_dict() for bar in bars],
        "conditions": {"seeds": given.seeds, **conditions()},
    }
    print(json.dumps(last))
    return 0 if all(bar.met for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
