"""Bounds of pipelines against their prices."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest

from flowtrain.cost.communication import Mesh
from flowtrain.plan.prices.chain import Chain
from flowtrain.plan.prices.costs import Shape
from flowtrain.plan.prices.pipeline import Pipeline, Pipelines
from flowtrain.plan.prices.row import Row
from flowtrain.plan.prices.tables import Tables
from flowtrain.plan.space import Rules
from tests.planned import small_model, small_pool, small_work

ROW = Row(2000.0, (900.0,), 3000.0, (1200.0,), 1000.0)


@pytest.mark.parametrize("module", ["model", "backbone"])
@pytest.mark.parametrize("stages", [2, 3, 5])
def test_bounds_are_never_above_the_price(module: str, stages: int) -> None:
    model, work, pool = small_model(), small_work(), small_pool(64)
    chain = Chain(Tables(model, work, pool.timing), model.layers_of(module))
    counts = [1, 2, 4, 8]
    options: dict[str, Any] = {"pool": pool, "rules": Rules()}
    shape = Shape(Mesh(pp=stages, dp=2), "optimizer")
    some = Pipelines(chain, shape, [ROW] * 4, microbatches=counts, rows_bytes=[1e6] * 4, **options)
    found = 0
    for memory in numpy.geomspace(2e7, 4e8, 12):
        bounds = some.bounds(memory)
        for number, count in enumerate(counts):
            one = Pipeline(chain, shape, [ROW], microbatches=[count], rows_bytes=[1e6], **options)
            cut = one.cut(int(memory))
            if cut is None:
                continue
            found += 1
            assert math.isfinite(bounds.fill_s[number])
            assert bounds.fill_s[number] <= (cut.fill_s + cut.heaviest_s) * (1 + 1e-9)
            assert bounds.longest_s[number] <= cut.longest_s * (1 + 1e-9)
            assert max(rank.total for rank in one.memory(cut.stages)) <= memory + 100
    assert found > 10
