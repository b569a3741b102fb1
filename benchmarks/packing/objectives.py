"""Ours on the other objectives, and the encoder's pre-pass."""

from __future__ import annotations

from collections.abc import Iterator

from peers.limited import timed

from flowtrain_core.packing import schedule
from packing.bars import Bar, worst_load, worst_row
from packing.cases import SCALES, Case
from packing.rows import Row, Rows

PART = "objectives"
_FREE = dict(zip(SCALES, (0.005, 0.005, 0.005, 0.06, 0.06), strict=True))
_STAGES = 4


def measure(case: Case) -> Iterator[Row]:
    work, shape = case.draw()
    for objective in ("accumulate", "max-microbatch", "pipeline"):
        options = shape | ({"stages": _STAGES} if objective == "pipeline" else {})
        plan, ms = timed(
            lambda o=objective, s=options: schedule(work.tokens, work.cost, objective=o, **s)
        )
        row = {"name": objective, "gap": 100 * plan.gap, "ms": ms}
        if objective == "max-microbatch":
            # No bin can do less than the costliest sample: then the mean is not the bound.
            mean = work.cost.sum() / (plan.ranks * plan.microbatches)
            row["mean_is_bound"] = bool(plan.bound <= mean * (1 + 1e-6))
        yield row
    plan, ms = timed(lambda: schedule(work.tokens, work.cost, work.encoder_cost, **shape))
    first = plan.encoder_loads[0]
    least = max(first.mean(), work.encoder_cost.max(), 1.0)
    yield {
        "name": "encoder pre-pass",
        "gap": 100 * float(first.max() / least - 1),
        "over_mean": 100 * float(first.max() / max(first.mean(), 1.0) - 1),
        "backbone_gap_more": 100 * (plan.gap - schedule(work.tokens, work.cost, **shape).gap),
        "ms": ms,
    }


def bars(rows: Rows, scale: str) -> Iterator[Bar]:
    free = rows.of(PART, scale=scale, name="accumulate")
    yield worst_load(f"free-running ranks, %, {scale}", free, "gap", _FREE[scale])
    even = rows.of(PART, scale=scale, name="max-microbatch", mean_is_bound=True)
    coarse = [row for row in even if row["load"] == "coarse"]
    others = [row for row in even if row["load"] != "coarse"]
    if SCALES[scale][0] <= 4096 and others:
        yield worst_load(
            f"max-microbatch where the mean is the bound, %, {scale}", others, "gap", 0.1
        )
    if SCALES[scale][0] <= 4096 and coarse:
        yield worst_load(f"max-microbatch, coarse, %, {scale}", coarse, "gap", 2.0)
    encoder = rows.of(PART, scale=scale, name="encoder pre-pass")
    yield worst_load(f"encoder pre-pass, %, {scale}", encoder, "gap", 1.0)
    yield worst_row(f"points it adds to the backbone, {scale}", encoder, "backbone_gap_more", 0.0)
