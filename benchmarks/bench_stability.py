"""Does the test of stability find a number of samples whose split of the GPUs others would find?

For each preset of `flowtrain.workloads` and each rule, the test runs `--repeats` times, each with a
seed of its own. `chosen` is how often it ends with the reference split, which 2^20 samples give;
`stable` how often it ends before its maximum of samples, 65,536. `samples_*` are the sizes it ends
with. `again` is the share of all single batches of the median size that give the reference split.
`margin` is the change of the ratio of work that would change the reference split, `variation` the
standard deviation of that ratio for one sample. Rules: GPUs in proportion to the work, on 16 and 64
GPUs (`proportional_16`, `proportional_64`), and `flowtrain.plan.solve` on layouts for 64 GPUs
(`solve_64`). The last line is JSON. The exit status is 1 if a preset has less than 95 of 100.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
from packing.bars import Bar

from flowtrain.bench.conditions import conditions
from flowtrain.plan import Candidates, solve
from flowtrain.plan.stability import Allocate, of_preset, proportional, stability
from flowtrain.workloads import PRESETS

LARGE = 1 << 20
_GPUS = 64
_BACKBONE_STAGES = (1, 2, 4, 7, 14, 28)


def layouts() -> list[dict[str, Any]]:
    """Encoder and backbone: GPUs, the share of the work that each does, and pipeline stages."""
    degrees = (1, 2, 4, 8)
    encoder = [(tp, 1, dp) for tp in degrees for dp in range(1, _GPUS // tp + 1)]
    backbone = [
        (tp, pp, dp)
        for tp, pp, dp in itertools.product(degrees, _BACKBONE_STAGES, (1, 2, 4, 8, 16, 32))
        if tp * pp * dp <= _GPUS
    ]
    found = []
    for module in (encoder, backbone):
        tp, pp, dp = numpy.array(module).T
        found.append(
            {
                "gpus": tp * pp * dp,
                "share": (1 + 0.04 * (tp - 1)) / (tp * pp * dp),
                "stages": pp,
                # Weights, gradients and optimizer of 12 GiB, and 16 GiB of activations.
                "memory_bytes": ((12 / (tp * pp) + 16 / (tp * dp)) * 2**30).astype(numpy.int64),
            }
        )
    return found


def by_solve(work: numpy.ndarray, *, of: list[dict[str, Any]]) -> tuple[int, ...]:
    """GPUs of each module of the allocation with the shortest step, for this mean work."""
    offers = {}
    for name, each, flops in zip(("encoder", "backbone"), of, work, strict=True):
        time_s = flops * each["share"] * 1e-12
        offers[name] = Candidates(
            gpus=each["gpus"],
            microbatch_s=time_s,
            fill_s=each["stages"] * time_s,
            memory_bytes=each["memory_bytes"],
        )
    found = solve(offers, gpus=_GPUS, microbatches=32, memory_bytes=40 << 30)
    return tuple(choice.gpus for choice in found.choices.values())


RULES: dict[str, Callable[[], Allocate]] = {
    "proportional_16": lambda: partial(proportional, gpus=16),
    "proportional_64": lambda: partial(proportional, gpus=64),
    "solve_64": lambda: partial(by_solve, of=layouts()),
}


def measured(name: str, allocate: Allocate, repeats: int) -> dict[str, Any]:
    draw = of_preset(name)
    random = numpy.random.default_rng(1)
    reference = tuple(allocate(numpy.asarray(draw(LARGE, random)).mean(axis=0)))
    found = [stability(draw, allocate, seed=seed) for seed in range(repeats)]
    sizes = [each.rounds[-1].samples for each in found]
    size = int(numpy.median(sizes))
    again = [
        tuple(allocate(numpy.asarray(draw(size, random)).mean(axis=0))) == reference
        for _ in range(repeats)
    ]
    large = stability(draw, allocate, seed=0, start=LARGE, maximum=LARGE, error=0.9)
    return {
        "gpus": reference,
        "chosen": sum(each.gpus == reference for each in found),
        "stable": sum(each.samples is not None for each in found),
        "samples_median": size,
        "samples_most": max(sizes),
        "again": sum(again),
        "variation": round(large.variation, 4),
        "margin": round(large.margin, 4),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=100, help="of each preset and rule")
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=RULES)
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    given = parser.parse_args()
    results: dict[str, dict[str, Any]] = {}
    bars = []
    for rule in given.rules:
        allocate = RULES[rule]()
        results[rule] = {name: measured(name, allocate, given.repeats) for name in PRESETS}
        for name, row in results[rule].items():
            bars.append(
                Bar(
                    name=f"{rule}, {name}: repeats with the reference split",
                    value=row["chosen"],
                    bar=0.95 * given.repeats,
                    at_least=True,
                    where=f"{row['samples_median']} samples, {row['stable']} stable",
                )
            )
            if not given.json:
                shown = {key: row[key] for key in ("gpus", "again", "variation", "margin")}
                print(bars[-1], shown, flush=True)
    last = {
        **results,
        "bars": [bar.as_dict() for bar in bars],
        "conditions": {"repeats": given.repeats, **conditions()},
    }
    print(json.dumps(last))
    return 0 if all(bar.met for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
