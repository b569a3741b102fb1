"""Does it pay to correct costs while training? Times are simulated.

Steps are drawn from presets of `flowtrain.workloads` and placed by the packing scheduler as a run
places them. A kernel is slow for some ranges of 128 tokens (`--tile`): documents of these lengths
take 1.3 times as long as their cost says. Ranges are drawn until they hold 1, 3 or 5 % of the
documents; a preset in which single ranges hold too much for that is left out. A microbatch takes
the sum of its documents, times noise with a standard deviation of `--noise`; one in 500 takes
twice as long again. The correction sees these times only, five steps later; it knows neither the
ranges nor the factor.

Of each step there are three schedules: with plain costs, with corrected costs, and with true ones
(the oracle). Each is priced without noise: the slowest rank's sum of true times. `loss` is how
much longer all steps together take with plain costs than with true ones. `recovered` is the share
of that loss which is gone with corrected costs, (plain - corrected) / (plain - oracle), over all
steps, with the first ones, in which nothing is known yet. `late` counts the second half of the
steps alone.

On clean times (noise, but no slow range) `off_after` is the number of steps after which the
correction has switched itself off. `widths` has what is recovered at 3 % if a shape is 128, 256 or
512 tokens wide, or a power of two, in place of 64 tokens. The last line is JSON; the exit status
is 1 if a bar is not met.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy
from packing.bars import Bar

from flowtrain.bench.conditions import conditions
from flowtrain.cost.correction import Correction
from flowtrain.cost.slow_shapes import MeasuredRow, shape_of
from flowtrain.packing import fewest_slots
from flowtrain.workloads import PRESETS, Workload, preset
from flowtrain_core.packing import Assignment

RATES = (0.01, 0.03, 0.05)
SLOWER = 1.3
SECONDS_PER_FLOP = 1e-14
# Plans are made so many steps before their times are known, as with `flow.plan_ahead` of 4.
DELAY = 5
# Of a step's time: what `ms_step` is of these steps, if it were not hidden in a thread.
COST_SHARE = 5e-4
HICCUPS, HICCUP = 0.002, 2.0

Shape = Callable[[int], int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """Samples of a step, ranks, microbatches of a rank, and steps."""

    samples: int
    ranks: int
    microbatches: int
    steps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """A preset, the ranges of lengths that are slow, and the maximum tokens of a microbatch."""

    name: str
    tile: int
    slow: tuple[int, ...]
    max_tokens: int

    def times(self, work: Workload) -> numpy.ndarray:
        """True seconds of each document."""
        slow = numpy.isin(-(-work.tokens // self.tile), self.slow)
        return work.cost * numpy.where(slow, SLOWER, 1.0) * SECONDS_PER_FLOP


def load_of(name: str, rate: float, scale: Scale, *, tile: int, seed: int) -> Load | None:
    """A load with ranges that hold this share of the documents; None if no choice of them does."""
    many = preset(name, 20_000, seed=seed)
    tiles, counts = numpy.unique(-(-many.tokens // tile), return_counts=True)
    shares = counts / len(many)
    slow: list[int] = []
    total = 0.0
    for place in numpy.random.default_rng(seed).permutation(len(tiles)):
        if total < rate and total + shares[place] <= 1.25 * rate:
            slow.append(int(tiles[place]))
            total += shares[place]
    if total < 0.75 * rate:
        return None
    mean = many.tokens.mean() * scale.samples / (scale.ranks * scale.microbatches)
    longest = int(many.tokens.max())
    return Load(name=name, tile=tile, slow=tuple(slow), max_tokens=max(int(1.25 * mean), longest))


def simulated(
    load: Load, scale: Scale, *, noise: float, seed: int, shape: Shape = shape_of
) -> dict[str, Any]:
    """Train with a correction on simulated times."""
    random = numpy.random.default_rng([seed, 1])
    correction = Correction()
    known: list[Mapping[int, float]] = [{}] * DELAY
    prices = numpy.zeros((scale.steps, 3))
    spent, off_after = 0.0, None
    for step in range(scale.steps):
        work = fitting(load, preset(load.name, scale.samples, seed=10_000 * (seed + 1) + step))
        shapes = numpy.array([shape(length) for length in work.tokens.tolist()])
        factors = numpy.array([known[step].get(each, 1.0) for each in shapes.tolist()])
        true = load.times(work)
        place = partial(placed, work, scale, load.max_tokens)
        plans = place(work.cost), place(work.cost * factors), place(true)
        prices[step] = [slowest(plan, true) for plan in plans]
        measured = rows_of(plans[1], work, shapes, true, noise=noise, random=random)
        start = time.process_time()
        correction.observe(measured, cost_s=COST_SHARE * prices[step, 1])
        spent += time.process_time() - start
        known.append(correction.factors)
        if correction.state == "off" and off_after is None:
            off_after = step + 1
    return {
        "preset": load.name,
        "loss": float(prices[:, 0].sum() / prices[:, 2].sum() - 1),
        "recovered": recovered(prices),
        "late": recovered(prices[scale.steps // 2 :]),
        "factors": len(correction.factors),
        "off_after": off_after,
        "ms_step": 1e3 * spent / scale.steps,
    }


def fitting(load: Load, work: Workload) -> Workload:
    """The samples that fit into a microbatch."""
    kept = work.tokens <= load.max_tokens
    return Workload(
        name=work.name,
        tokens=work.tokens[kept],
        visual_tokens=work.visual_tokens[kept],
        cost=work.cost[kept],
        encoder_cost=work.encoder_cost[kept],
    )


def placed(work: Workload, scale: Scale, max_tokens: int, cost: numpy.ndarray) -> Assignment:
    """The schedule of a run: ranks meet once a step."""
    return fewest_slots(
        work.tokens.tolist(),
        cost.tolist(),
        ranks=scale.ranks,
        max_tokens=max_tokens,
        min_slots=scale.microbatches,
    )


def slowest(plan: Assignment, true: numpy.ndarray) -> float:
    """Seconds of the slowest rank."""
    return float(numpy.bincount(plan.rank, weights=true, minlength=plan.ranks).max())


def rows_of(
    plan: Assignment,
    work: Workload,
    shapes: numpy.ndarray,
    true: numpy.ndarray,
    *,
    noise: float,
    random: numpy.random.Generator,
) -> list[MeasuredRow]:
    """Measured microbatches of a step."""
    rows = []
    bins = plan.slot * plan.ranks + plan.rank
    for place in numpy.unique(bins).tolist():
        own = numpy.flatnonzero(bins == place)
        hiccup = HICCUP if random.random() < HICCUPS else 1.0
        rows.append(
            MeasuredRow(
                rank=place % plan.ranks,
                shapes=tuple(shapes[own].tolist()),
                cost=tuple(work.cost[own].tolist()),
                seconds=true[own].sum() * max(0.5, 1 + noise * random.normal()) * hiccup,
            )
        )
    return rows


def recovered(prices: numpy.ndarray) -> float | None:
    """Share of the loss that is gone; None without a loss."""
    plain, corrected, oracle = prices.sum(axis=0)
    return float((plain - corrected) / (plain - oracle)) if plain > oracle else None


def mean(rows: list[dict[str, Any]], key: str) -> float:
    return float(numpy.mean([row[key] for row in rows]))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=1024, help="of a step")
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--microbatches", type=int, default=8, help="of a rank in a step")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tile", type=int, default=128, help="tokens of a range that may be slow")
    parser.add_argument("--noise", type=float, default=0.03)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    given = parser.parse_args()
    scale = Scale(
        samples=given.samples,
        ranks=given.ranks,
        microbatches=given.microbatches,
        steps=given.steps,
    )

    def rows_at(
        rate: float, seeds: int, *, shape: Shape = shape_of, steps: int = given.steps
    ) -> list[dict[str, Any]]:
        loads = (
            (load_of(name, rate, scale, tile=given.tile, seed=seed), seed)
            for name in PRESETS
            for seed in range(seeds)
        )
        own = Scale(
            samples=scale.samples, ranks=scale.ranks, microbatches=scale.microbatches, steps=steps
        )
        return [
            simulated(load, own, noise=given.noise, seed=seed, shape=shape)
            for load, seed in loads
            if load is not None
        ]

    bars, results = [], {}
    for rate in RATES:
        rows = rows_at(rate, given.seeds)
        results[rate] = rows
        name = f"recovered at {rate:.0%} (simulated)"
        bars.append(Bar(name=name, value=mean(rows, "recovered"), bar=0.5, at_least=True))
        if not given.json:
            for row in rows:
                print(
                    f"{rate:.0%} {row['preset']:12} loss {row['loss']:6.2%}  "
                    f"recovered {row['recovered']:6.1%}  second half {row['late']:6.1%}  "
                    f"{row['factors']} factors  {row['ms_step']:.1f} ms a step"
                )
    clean = rows_at(0.0, given.seeds, steps=60)
    worst = max(row["off_after"] or 1_000_000 for row in clean)
    bars.append(Bar(name="steps until off on clean times (simulated)", value=worst, bar=50))
    widths: dict[str, Shape] = {
        "64": shape_of,
        "128": lambda length: -(-length // 128),
        "256": lambda length: -(-length // 256),
        "512": lambda length: -(-length // 512),
        "power of two": int.bit_length,
    }
    by_width = {
        name: round(mean(rows_at(0.03, 1, shape=shape), "recovered"), 3)
        for name, shape in widths.items()
    }
    if not given.json:
        print("recovered at 3 % by width of a shape:", by_width)
        for bar in bars:
            print(bar)
    last = {
        **{
            f"recovered_{rate:.0%}": round(mean(rows, "recovered"), 3)
            for rate, rows in results.items()
        },
        **{
            f"recovered_{rate:.0%}_worst": round(min(row["recovered"] for row in rows), 3)
            for rate, rows in results.items()
        },
        **{
            f"recovered_{rate:.0%}_late": round(mean(rows, "late"), 3)
            for rate, rows in results.items()
        },
        **{f"loss_{rate:.0%}": round(mean(rows, "loss"), 4) for rate, rows in results.items()},
        "off_after": worst,
        "widths": by_width,
        "ms_step": round(mean([row for rows in results.values() for row in rows], "ms_step"), 1),
        "presets": sorted({row["preset"] for rows in results.values() for row in rows}),
        "simulated": True,
        "bars": [bar.as_dict() for bar in bars],
        "conditions": {**vars(given), **conditions()},
    }
    print(json.dumps(last))
    return 0 if all(bar.met for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
