"""The lock-step objective: ours, every policy, every peer."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy
from peers.limited import limited, timed, timed_alternately
from peers.schedulers import PEERS

from flowtrain.workloads import Workload
from flowtrain_core._C import packing as kernels
from flowtrain_core.packing import Assignment, schedule
from packing.bars import Bar, worst_load, worst_row
from packing.cases import OURS, PLACED, SCALES, Case
from packing.contenders import Contender, contenders
from packing.rows import Row, Rows, grouped, median

PART = "lockstep"
COMPARABLE = (
    "times are compared with those peers that kept to the cap and to our number of slots on all "
    "seeds of a load and whose median gap is at most twice ours, or within 0.5 points of it; ours "
    "is the time of the quicker of schedule(...) and schedule(..., refined=False) whose median gap "
    "is not above the peer's"
)
_POINTS = 0.5
_GAPS = dict(zip(SCALES, (0.75, 0.6, 0.5, 0.5, 0.5), strict=True))
# Milliseconds of placement, and with refinement.
_TIMES = {"1024/16/8": (0.05, 0.5), "4096/64/8": (0.3, 2.0), "16384/512/4": (1.5, 5.0)}


class LockStep:
    """Measures cases; what took a contender too long is not tried on larger ones."""

    def __init__(self, rows: Rows, *, seconds: float, ours_alone: bool) -> None:
        """Args: what is known; limit of a contender on one step; whether to measure ours alone."""
        self._seconds = seconds
        self._others: dict[str, Contender] = {}
        self._missing: dict[str, str] = {}
        if not ours_alone:
            self._others, self._missing = contenders()
        self._too_large = {
            row["name"]: (SCALES[row["scale"]][0], row["reason"])
            for row in reversed(rows.reasons(PART))
            if row.get("too_large")
        }

    def measure(self, case: Case) -> Iterator[Row]:
        work, shape = case.draw()
        ours = schedule(work.tokens, work.cost, **shape)
        times = _times(work, shape)
        yield {"name": OURS, **_figures(ours, times["ms"]), **times}
        placed, ms = timed(lambda: schedule(work.tokens, work.cost, refined=False, **shape))
        yield {"name": PLACED, **_figures(placed, ms)}
        for name, reason in self._missing.items():
            yield {"name": name, "reason": reason, "missing": True}
        for name, run in self._others.items():
            yield {"name": name} | self._other(case, name, partial(run, work, shape, ours))

    def _other(self, case: Case, name: str, run: Callable[[], tuple[Assignment, float]]) -> Row:
        samples, reason = self._too_large.get(name, (numpy.inf, ""))
        if case.samples >= samples:
            return {"reason": reason, "too_large": True}
        row, reason, too_large = limited(lambda: _figures(*run()), seconds=self._seconds)
        if row is not None:
            return row
        reason += f", on {case.load} of {case.scale}"
        if too_large:
            self._too_large[name] = (case.samples, reason)
        return {"reason": reason, "too_large": too_large}


def _figures(plan: Assignment, ms: float) -> Row:
    return {
        "gap": 100 * plan.gap,
        "ms": ms,
        "over": int((plan.bin_tokens > plan.max_tokens).sum()),
        "slots": plan.microbatches,
    }


def _times(work: Workload, shape: dict[str, Any]) -> Row:
    """Milliseconds from Python, and of the kernel alone: placement, and with refinement.

    Kernel and Python call follow each other alone: after a placement of the same samples the caches
    are warm for either.
    """
    cost, _ = kernels.integer_costs(work.cost, "cost")
    args = (work.tokens, cost, *shape.values(), "lockstep")
    _, placed = timed(lambda: kernels.schedule(*args, refined=False))
    rounds = timed_alternately(
        lambda: kernels.schedule(*args),
        lambda: schedule(work.tokens, work.cost, **shape),
    )
    refined, python = (statistics.median(times) for times in zip(*rounds, strict=True))
    more = statistics.median(python - native for native, python in rounds)
    return {"ms": python, "placement_ms": placed, "native_ms": refined, "python_ms": more}


def bars(rows: Rows, scale: str) -> Iterator[Bar]:
    """What is asked of one scale, over all its loads."""
    ours = rows.of(PART, scale=scale, name=OURS)
    yield worst_load(f"lock-step gap, %, {scale}", ours, "gap", _GAPS[scale])
    yield worst_row(f"microbatches over the cap, {scale}", ours, "over", 0)
    if scale in _TIMES:
        placement, refined = _TIMES[scale]
        yield worst_load(f"placement, ms, {scale}", ours, "placement_ms", placement)
        yield worst_load(f"with refinement, ms, {scale}", ours, "native_ms", refined)
        yield worst_load(f"from Python, ms more, {scale}", ours, "python_ms", 0.2)
    placed = rows.of(PART, scale=scale, name=PLACED)
    others = [row for row in rows.of(PART, scale=scale) if row["name"] not in (OURS, PLACED)]
    missing = {row["name"] for row in rows.reasons(PART) if row.get("missing")}
    if others or missing:
        yield _behind(scale, ours, others, missing)
        yield _speedup(scale, ours, placed, others, missing)


def _behind(scale: str, ours: Sequence[Row], others: Sequence[Row], missing: set[str]) -> Bar:
    """Points above the best of those that kept to cap and slots on the same seed; at worst."""
    name = f"points behind a feasible peer, {scale}"
    if missing:
        return Bar(name=name, value=None, bar=0.1, where=_not_installed(missing))
    worst: tuple[float, str] = (-numpy.inf, "")
    by_step = grouped(others, "load", "seed")
    for mine in ours:
        for peer in by_step.get((mine["load"], mine["seed"]), []):
            if not peer["over"] and peer["slots"] <= mine["slots"]:
                where = f"{mine['load']} seed {mine['seed']}, {peer['name']}"
                worst = max(worst, (mine["gap"] - peer["gap"], where))
    return Bar(name=name, value=worst[0], bar=0.1, where=worst[1])


def _speedup(
    scale: str,
    ours: Sequence[Row],
    placed: Sequence[Row],
    others: Sequence[Row],
    missing: set[str],
) -> Bar:
    """Over the peer of comparable quality that comes nearest, by medians of the seeds."""
    name = f"times as fast as a comparable peer, {scale}"
    if missing:
        return Bar(name=name, value=None, bar=10, at_least=True, where=_not_installed(missing))
    refined, quick = grouped(ours, "load"), grouped(placed, "load")
    worst: tuple[float, str] = (numpy.inf, "none is comparable")
    for (load, peer), theirs in grouped(others, "load", "name").items():
        mine = refined[load,]
        gap, own = median(theirs, "gap"), median(mine, "gap")
        kept = all(not row["over"] and row["slots"] <= mine[0]["slots"] for row in theirs)
        if peer not in PEERS or not kept or gap > max(2 * own, own + _POINTS):
            continue
        if (load,) in quick and median(quick[load,], "gap") <= gap:
            mine = quick[load,]
        where = f"{load}, {peer}: {gap:.3f} % against {median(mine, 'gap'):.3f} %"
        worst = min(worst, (median(theirs, "ms") / median(mine, "ms"), where))
    return Bar(name=name, value=worst[0], bar=10, at_least=True, where=worst[1])


def _not_installed(missing: set[str]) -> str:
    return f"not installed: {', '.join(sorted(missing))}"
