"""Answers to requests for plans."""

from __future__ import annotations

from flowtrain.plan import request
from flowtrain.plan.search import search
from flowtrain.plan.space import Space
from tests.planned import small_model, small_pool, small_work


def test_a_point_of_a_curve_is_the_plan_that_its_own_report_shows() -> None:
    model, work, pools = small_model(), small_work(), [small_pool(8)]
    report = search(model, work, pools)
    assert report.best != report.cheapest  # The simulation has changed the order.
    assert request._point(model, work, pools, Space(), gpus=8).plan == report.best
