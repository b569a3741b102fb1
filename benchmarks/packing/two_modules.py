"""Rigid coupling: the largest load of either module, both with the same mean."""

from __future__ import annotations

from collections.abc import Iterator

from peers.limited import timed

from flowtrain_core.packing import schedule
from packing.bars import Bar, worst_load
from packing.cases import Case
from packing.rows import Row, Rows

PART = "two-modules"
SCALE = "256/8/4"
_CONTENDERS = {
    "flowtrain-rigid": ("flowtrain-rigid", {}),
    "longest first": ("dflop", {}),
    "CP-SAT, 10 s": ("dflop", {"exact": True, "time_limit_s": 10.0}),
}


def measure(case: Case) -> Iterator[Row]:
    work, shape = case.draw()
    # An allocator would have given each module what it needs.
    encoder = work.encoder_cost * (work.cost.sum() / max(1.0, work.encoder_cost.sum()))
    for name, (policy, options) in _CONTENDERS.items():
        try:
            plan, ms = timed(
                lambda p=policy, o=options: schedule(
                    work.tokens, work.cost, encoder, policy=p, **shape, **o
                ),
                wall="exact" in options,
            )
        except ModuleNotFoundError as error:
            yield {"name": name, "reason": f"{error}; run: make bench-setup"}
            continue
        worst = max(plan.loads.max(), plan.encoder_loads.max()) / plan.loads.mean()
        yield {"name": name, "over_mean": 100 * float(worst - 1), "ms": ms}


def bars(rows: Rows) -> Iterator[Bar]:
    ours = rows.of(PART, name="flowtrain-rigid")
    yield worst_load("two modules, ms", ours, "ms", 1.0)
    exact = {
        (row["load"], row["seed"]): row["over_mean"] for row in rows.of(PART, name="CP-SAT, 10 s")
    }
    behind = [
        (row["over_mean"] - exact[row["load"], row["seed"]], f"{row['load']} seed {row['seed']}")
        for row in ours
        if (row["load"], row["seed"]) in exact
    ]
    # CP-SAT counts in ten-thousandths of a mean bin.
    value, where = max(behind, default=(None, "OR-tools is missing"))
    yield Bar(name="two modules, points behind CP-SAT", value=value, bar=1e-3, where=where)
