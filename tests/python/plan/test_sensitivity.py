from __future__ import annotations

from typing import Any

import pytest

from flowtrain.plan.fixed import narrowed, only
from flowtrain.plan.search import search
from flowtrain.plan.sensitivity import EXPOSED, scaled_rankings
from flowtrain.plan.space import Rules, Space
from tests.planned import small_model, small_pool, small_work


def test_plans_are_priced_with_less_and_with_all_of_their_collectives_exposed() -> None:
    case = (small_model(), small_work(), [small_pool(8)])
    space = Space(modes=("colocated",), tp=(1,), cp=(1,), pp=(1,), microbatches=(2,))
    options: dict[str, Any] = {"neighbours": False, "batches": 0}
    plans = [
        search(
            *case, space=narrowed(space, [f"backbone.sharding={name}"], encoders=[]), **options
        ).best
        for name in ("full", "replicated")
    ]
    found = {each.factor: each for each in scaled_rankings(*case, plans) if each.name == EXPOSED}
    for factor, share in ((0.5, 0.25), (2.0, 1.0)):
        rules = Rules(exposed_share=share)
        steps_s = [
            search(*case, space=only(plan), rules=rules, **options).best.step_s for plan in plans
        ]
        assert found[factor].loss == pytest.approx(steps_s[0] / min(steps_s) - 1)
    assert found[0.5].loss != found[2.0].loss
