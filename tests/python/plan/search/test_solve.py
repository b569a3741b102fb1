"""The allocator's solver finds the same disaggregated plan from the prices of all layouts.

Encoders fill side by side, which the solver's objective does not know: it is given all choices of
layouts for them as candidates of one module.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import replace

import pytest

from flowtrain.plan import Candidates, NoAllocationError, solve
from flowtrain.plan.describe import ModelDescription
from flowtrain.plan.search import search
from flowtrain.plan.search.best import Best
from flowtrain.plan.search.context import Context
from flowtrain.plan.search.cutoffs import Cutoffs
from flowtrain.plan.space import Rules, Space
from flowtrain.plan.work import Work
from tests.planned import small_model, small_pool, small_work, two_encoders

SPACE = Space(
    modes=("disaggregated",), tp=(1, 2), cp=(1, 2), pp=(1, 2, 3), microbatches=(1, 2, 4, 8)
)
GPUS = 12

Row = tuple[int, float, float, float, int]


def candidates(rows: list[Row]) -> Candidates:
    gpus, microbatch_s, fill_s, update_s, memory = map(list, zip(*rows, strict=True))
    return Candidates(
        gpus=gpus,  # type: ignore[arg-type]
        microbatch_s=microbatch_s,  # type: ignore[arg-type]
        fill_s=fill_s,  # type: ignore[arg-type]
        update_s=update_s,  # type: ignore[arg-type]
        memory_bytes=memory,  # type: ignore[arg-type]
    )


def backbones(context: Context) -> dict[tuple[int, int], list[Row]]:
    """Prices of all backbones, by microbatches and stages."""
    found: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for gpus in context.budgets():
        for pipelines in context.pipelines("backbone", gpus, Cutoffs(Best(1), lambda *_: None)):
            for m in pipelines.microbatches.astype(int).tolist():
                pipeline = context.pipeline("backbone", pipelines.shape, m)
                cut = pipeline.cut(context.usable_bytes)
                if cut is not None:
                    memory = int(max(rank.total for rank in pipeline.memory(cut.stages)))
                    row = (gpus, cut.longest_s, cut.fill_s + cut.heaviest_s, cut.update_s, memory)
                    found[m, pipeline.stages].append(row)
    return found


@pytest.mark.parametrize(
    "case",
    [(small_model(), small_work()), (two_encoders(), small_work(with_audio=True))],
    ids=["one encoder", "two encoders"],
)
def test_the_solver_finds_the_plan_of_the_search(case: tuple[ModelDescription, Work]) -> None:
    for memory in (120_000_000, 400_000_000):
        pool = small_pool(GPUS, memory_bytes=memory)
        context = Context(*case, pool, SPACE, Rules())
        steps = []
        for (m, stages), rows in backbones(context).items():
            in_flight = min(m, stages + 1)
            prices = [
                context.encoders(place, microbatches=m, cutoff_s=math.inf)
                for place in range(len(context.model.encoders))
            ]
            beside = [
                (
                    sum(price.shape.gpus for price in chosen),
                    max(price.microbatch_s for price in chosen),
                    max(price.first_s for price in chosen) + max(price.last_s for price in chosen),
                    max(price.update_s for price in chosen),
                    int(max(price.memory(in_flight).total for price in chosen)),
                )
                for chosen in itertools.product(*prices)
            ]
            modules = {"backbone": candidates(rows), "encoders": candidates(beside)}
            try:
                found = solve(
                    modules,
                    gpus=GPUS,
                    microbatches=m,
                    memory_bytes=context.usable_bytes,
                )
            except NoAllocationError:
                continue
            steps.append(found.step_s)
        report = search(*case, [pool], space=SPACE, batches=0)
        assert report.best.step_s == pytest.approx(min(steps), rel=1e-12)
        longer = replace(SPACE, pp=(1,))
        assert search(*case, [pool], space=longer).best.step_s >= min(steps) * (1 - 1e-12)
