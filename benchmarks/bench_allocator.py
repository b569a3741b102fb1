"""Is the allocation the best one, how long does it take, and what do other policies choose?

Candidates are drawn from seeds (`allocator/instances.py`). `max_regret` is how far the step of the
solver is from the minimum of an enumeration of all choices, up to 128 GPUs, as a share.
`highs_step`, `highs_rate` and `highs_mismatch` are the differences from the optima of mixed-integer
programs that HiGHS solves, as shares: of the step, and of FlowTrain's G and F (F as a share of G).
`ms_512` and `ms_10240` are processor time of one call from Python, of the slowest instance;
`curve_ms` that of all budgets from 8 to 256 GPUs in steps of 8, `ranked_ms` that of the 20 best.
`over_memory` counts chosen candidates above the memory limit, `longer_with_more_gpus` steps that
are longer than with fewer GPUs. `*_step` are steps of other policies over that of `exact`,
`exact_rate` is G of `exact` over that of `flowtrain`. The last line is JSON. The exit status is 1
if a bar is not met.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy
from allocator.instances import KINDS, Instance, large, small
from allocator.milp import least_step_s, rates
from allocator.oracle import best_step_s
from packing.bars import Bar

from flowtrain.bench.conditions import conditions
from flowtrain.plan.allocation import Allocation, NoAllocationError, curve, ranked, solve

BUDGETS = (8, 24, 64, 128)
MILP_BUDGETS = (16, 48)
MODULES = (2, 3, 4)
RATES = ("two", "three", "pools", "total", "tight")  # Kinds without times of 0.


def allocated(drawn: Instance, policy: str = "exact", **changes: Any) -> Allocation | None:
    limits = {**drawn.limits, **changes}
    try:
        return solve(drawn.candidates, **limits, policy=policy)
    except NoAllocationError:
        return None


def over_memory(drawn: Instance, found: Allocation) -> int:
    """Chosen candidates that need more memory than there is, by their own arrays."""
    limit, count = drawn.limits["memory_bytes"], 0
    for name, choice in found.choices.items():
        (each,) = (of for of in drawn.candidates[name] if of.gpu_type == choice.gpu_type)
        most = limit if isinstance(limit, int) else limit[choice.gpu_type]
        count += int(each.memory_bytes[choice.index] > most)
    return count


def difference(found: float, expected: float) -> float:
    return abs(found - expected) / expected if expected else abs(found)


def enumerated(seeds: range) -> Iterator[dict[str, float]]:
    """Each drawn instance: its regret, infinite if only one side finds a choice, and its gap."""
    for kind, gpus, seed in itertools.product(KINDS, BUDGETS, seeds):
        drawn = small(kind, gpus=gpus, seed=seed)
        expected = best_step_s(drawn.candidates, **drawn.limits)
        found = allocated(drawn)
        if found is None:
            yield {"regret": 0.0 if expected == math.inf else math.inf, "fits": 0}
            continue
        # No bound exceeds the step of its own allocation, so one that is not the best tells.
        other = allocated(drawn, "flowtrain")
        bound_s = max(found.bound_s, other.bound_s if other else math.inf)
        yield {
            "regret": difference(found.step_s, expected),
            "fits": 1,
            "over_memory": over_memory(drawn, found),
            "gap": found.gap,
            "bound_above": bound_s / expected - 1 if expected else bound_s,
        }


def by_highs(seeds: range) -> Iterator[dict[str, float]]:
    """Differences from the optima of the mixed-integer programs."""
    for kind, gpus, seed in itertools.product(KINDS, MILP_BUDGETS, seeds):
        drawn = small(kind, gpus=gpus, seed=seed)
        found = allocated(drawn)
        if found is None:
            continue
        step_s = least_step_s(drawn.candidates, **drawn.limits)
        row = {"step": math.inf if step_s is None else difference(found.step_s, step_s)}
        matched = allocated(drawn, "flowtrain")
        if kind in RATES and matched is not None:
            expected = rates(drawn.candidates, **drawn.limits) or (math.inf, math.inf)
            row["rate"] = difference(matched.rate, expected[0])
            row["mismatch"] = abs(matched.mismatch - expected[1]) / expected[0]
        yield row


def longer_with_more(seeds: range) -> Iterator[int]:
    """For each instance, how many budgets have a longer step than a smaller budget has."""
    for kind, seed in itertools.product(KINDS, seeds):
        drawn = small(kind, gpus=48, seed=seed)
        if isinstance(drawn.limits["gpus"], dict):
            budgets = [
                {of: count * n for of, count in drawn.limits["gpus"].items()} for n in range(1, 5)
            ]
        else:
            budgets = list(range(2, 97, 2))
        found = [allocated(drawn, gpus=budget) for budget in budgets]
        steps = [math.inf if one is None else one.step_s for one in found]
        yield sum(after > before * (1 + 1e-12) for before, after in itertools.pairwise(steps))


def milliseconds(run: Callable[[], object], repeats: int = 3) -> float:
    """Processor time of a call, the median of some."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(1e3 * (time.process_time() - start))
    return float(numpy.median(times))


def timed(gpus: int, seeds: range) -> list[dict[str, float]]:
    """Time of a call for each large instance that fits, and its number of candidates."""
    rows = []
    for modules, seed in itertools.product(MODULES, seeds):
        drawn = large(modules, gpus=gpus, seed=seed)
        found = allocated(drawn)
        if found is not None:
            rows.append(
                {
                    "ms": milliseconds(lambda drawn=drawn: allocated(drawn)),
                    "candidates": sum(len(each) for of in drawn.candidates.values() for each in of),
                    "over_memory": over_memory(drawn, found),
                    "gap": found.gap,
                }
            )
    return rows


def timed_lists(seeds: range) -> dict[str, float]:
    """Time of a curve up to 256 GPUs, and of the 20 best for 512."""
    curves, best = [], []
    for modules, seed in itertools.product(MODULES, seeds):
        drawn = large(modules, gpus=256, seed=seed)
        limits = {name: value for name, value in drawn.limits.items() if name != "gpus"}
        if allocated(drawn) is not None:
            curves.append(
                milliseconds(
                    lambda drawn=drawn, limits=limits: curve(
                        drawn.candidates, gpus=range(8, 257, 8), **limits
                    ),
                    1,
                )
            )
        drawn = large(modules, gpus=512, seed=seed)
        if allocated(drawn) is not None:
            best.append(
                milliseconds(
                    lambda drawn=drawn: ranked(drawn.candidates, **drawn.limits, count=20), 1
                )
            )
    return {"curve_ms": max(curves), "ranked_ms": max(best)}


def compared(seeds: range) -> list[dict[str, float]]:
    """Other policies beside `exact`, on the layouts of a VLM with one or two encoders."""
    rows = []
    for modules, gpus, seed in itertools.product((2, 3), (64, 512), seeds):
        drawn = large(modules, gpus=gpus, seed=seed)
        exact, matched = allocated(drawn), allocated(drawn, "flowtrain")
        if exact is None or matched is None:
            continue
        row = {
            "flowtrain_step": matched.step_s / exact.step_s,
            "exact_rate": exact.rate / matched.rate,
            "exact_mismatch": exact.mismatch / exact.rate,
            "flowtrain_mismatch": matched.mismatch / matched.rate,
        }
        if modules == 2:
            dflop = allocated(drawn, "dflop")
            row["dflop_step"] = dflop.step_s / exact.step_s if dflop else math.nan
        rows.append(row)
    return rows


def summary(rows: list[dict[str, float]]) -> dict[str, float]:
    found: dict[str, float] = {"compared": len(rows)}
    for name in (
        "flowtrain_step",
        "dflop_step",
        "exact_rate",
        "exact_mismatch",
        "flowtrain_mismatch",
    ):
        values = numpy.array([row[name] for row in rows if not math.isnan(row.get(name, math.nan))])
        found[f"{name}_median"] = round(float(numpy.median(values)), 4)
        found[f"{name}_least"] = round(float(values.min()), 4)
        found[f"{name}_most"] = round(float(values.max()), 4)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10, help="of each kind and budget")
    parser.add_argument("--large", type=int, default=5, help="of each number of modules")
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    given = parser.parse_args()
    rows = list(enumerated(range(given.seeds)))
    fitting = [row for row in rows if row["fits"]]
    highs = list(by_highs(range(max(1, given.seeds // 2))))
    longer = list(longer_with_more(range(max(1, given.seeds // 3))))
    times = {gpus: timed(gpus, range(given.large)) for gpus in (512, 10240)}
    every = [*fitting, *times[512], *times[10240]]
    results: dict[str, Any] = {
        "max_regret": max(row["regret"] for row in rows),
        "enumerated": len(rows),
        "enumerated_fitting": len(fitting),
        "ms_512": round(max(row["ms"] for row in times[512]), 2),
        "ms_512_median": round(float(numpy.median([row["ms"] for row in times[512]])), 2),
        "ms_10240": round(max(row["ms"] for row in times[10240]), 1),
        "ms_10240_median": round(float(numpy.median([row["ms"] for row in times[10240]])), 1),
        "candidates_512": max(row["candidates"] for row in times[512]),
        "candidates_10240": max(row["candidates"] for row in times[10240]),
        **{name: round(value) for name, value in timed_lists(range(given.large)).items()},
        "over_memory": int(sum(row["over_memory"] for row in every)),
        "longer_with_more_gpus": sum(longer),
        "highs": len(highs),
        "highs_step": max(row["step"] for row in highs),
        "highs_rate": max(row.get("rate", 0.0) for row in highs),
        "highs_mismatch": max(row.get("mismatch", 0.0) for row in highs),
        "bound_above_optimum": max(0.0, *(row["bound_above"] for row in fitting)),
        "gap_small_median": round(float(numpy.median([row["gap"] for row in fitting])), 4),
        "gap_large_median": round(
            float(numpy.median([row["gap"] for row in every[len(fitting) :]])), 4
        ),
        "gap_large_most": round(max(row["gap"] for row in every[len(fitting) :]), 4),
        **summary(compared(range(given.large))),
    }
    bars = [
        Bar(name="regret over enumeration", value=results["max_regret"], bar=1e-12),
        Bar(name="instances enumerated", value=results["enumerated"], bar=200, at_least=True),
        Bar(name="ms, 512 GPUs, slowest instance", value=results["ms_512"], bar=50),
        Bar(name="ms, 10,240 GPUs, slowest instance", value=results["ms_10240"], bar=1000),
        Bar(name="candidates over memory", value=results["over_memory"], bar=0),
        Bar(name="steps longer with more GPUs", value=results["longer_with_more_gpus"], bar=0),
        Bar(name="step, difference from HiGHS", value=results["highs_step"], bar=1e-9),
        Bar(name="FlowTrain's G, difference from HiGHS", value=results["highs_rate"], bar=1e-9),
        Bar(name="FlowTrain's F, difference from HiGHS", value=results["highs_mismatch"], bar=1e-9),
        Bar(name="bound above optimum", value=results["bound_above_optimum"], bar=1e-12),
    ]
    if not given.json:
        for name, value in results.items():
            print(f"{name:<28}{value:>14.6g}")
        for bar in bars:
            print(bar)
    last = {
        **results,
        "bars": [bar.as_dict() for bar in bars],
        "conditions": {"seeds": given.seeds, "large": given.large, **conditions()},
    }
    print(json.dumps(last))
    return 0 if all(bar.met for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
