from __future__ import annotations

from typing import Any

import pytest
import torch

from flowtrain.config.optim import OptimConfig, ParameterGroup
from flowtrain.train.state.optimizer import LearningRates, build_optimizer, build_schedule

PLAIN: dict[str, Any] = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "options", [{"name": "adamw"}, {"name": "sgd"}, {"name": "sgd", "momentum": 0.9}]
)
def test_a_step_is_that_of_the_plain_optimizer(dtype: torch.dtype, options: dict[str, Any]) -> None:
    config = OptimConfig(lr=0.1, weight_decay=0.01, **options)
    # Large enough for vector instructions.
    start = torch.randn(8, 8, generator=torch.Generator().manual_seed(0), dtype=dtype)
    mine, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    more = {name: value for name, value in options.items() if name != "name"}
    plain = PLAIN[config.name]([theirs], lr=0.1, weight_decay=0.01, foreach=False, **more)
    for optimizer, parameter in ((build_optimizer([("w", mine)], config), mine), (plain, theirs)):
        for step in range(4):
            draw = torch.Generator().manual_seed(step)
            parameter.grad = torch.randn(8, 8, generator=draw, dtype=dtype)
            optimizer.step()
    assert not torch.equal(mine, start)
    difference = (mine - theirs).float().norm() / theirs.float().norm()
    # Each operation of the plain optimizer rounds to 8 bits.
    assert difference < (1e-2 if dtype == torch.bfloat16 else 1e-6)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "onecycle"])
def test_the_logged_rates_are_those_of_the_optimizer(schedule: str) -> None:
    groups = (ParameterGroup(match="v.*", lr=1e-5), ParameterGroup(match="b", weight_decay=0.0))
    warmup = 0 if schedule == "onecycle" else 2
    config = OptimConfig(lr=0.3, schedule=schedule, warmup_steps=warmup, groups=groups)  # type: ignore[arg-type]
    named = {name: torch.nn.Parameter(torch.zeros(2, 2)) for name in ("w", "v.0", "b")}
    optimizer = build_optimizer(named.items(), config)
    of = [
        (name, group)
        for name, p in named.items()
        for group in optimizer.param_groups
        if any(p is member for member in group["params"])
    ]
    plan = build_schedule(optimizer, config, steps=9)
    rates, resumed = (LearningRates(config, groups, steps=9) for _ in range(2))
    for step in range(9):
        real = {name: group["lr"] for name, group in of}
        assert rates.at(step) == (real["w"], {"v.*": real["v.0"], "b": real["b"]})
        if step >= 4:
            assert resumed.at(step) == rates.at(step)
        optimizer.step()
        plan.step()
