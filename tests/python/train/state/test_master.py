from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from linear_run import configuration, train


@pytest.mark.parametrize("optimizer", [{"name": "adamw"}, {"name": "sgd", "momentum": 0.9}])
def test_bfloat16_weights_follow_float32_training_also_after_a_resume(
    optimizer: dict[str, Any], folder: Path
) -> None:
    # So small a rate that bfloat16 alone would round most updates away.
    sections = {
        "model": {"compute_dtype": "bfloat16"},
        "optim": {**optimizer, "lr": 1e-4, "weight_decay": 0.1},
        "train": {"steps": 40},
        "checkpoint": {"every": 20},
    }
    config = configuration(folder, **sections)
    _, module = train(config)

    torch.manual_seed(config.train.seed)
    plain = torch.nn.Linear(3, 2)
    kind: Any = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[optimizer["name"]]
    options = {name: value for name, value in optimizer.items() if name != "name"}
    groups = [
        {"params": [plain.weight], "weight_decay": 0.1},
        {"params": [plain.bias], "weight_decay": 0.0},
    ]
    truth = kind(groups, lr=1e-4, fused=True, **options)
    for step in range(config.train.steps):
        torch.manual_seed(step)
        for parameter in plain.parameters():
            parameter.grad = torch.randn(parameter.shape)
        truth.step()
    with module.master.in_place():
        for mine, theirs in zip(module.trainable, plain.parameters(), strict=True):
            assert mine.dtype == torch.float32
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=0)
    for mine, theirs in zip(module.trainable, plain.parameters(), strict=True):
        assert torch.equal(mine, theirs.bfloat16())

    _, resumed = train(config, first=20)
    with module.master.in_place(), resumed.master.in_place():
        for mine, theirs in zip(module.trainable, resumed.trainable, strict=True):
            assert torch.equal(mine, theirs)
