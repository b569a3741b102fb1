from __future__ import annotations

from typing import Any

import pytest
import torch

from flowtrain.config.optim import OptimConfig
from flowtrain.train.state.optimizer import build_optimizer

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
