"""The cost model's bytes of states are those that training allocates."""

from __future__ import annotations

import pytest
import torch

from flowtrain.config.optim import OptimConfig
from flowtrain.cost.states import state_bytes
from flowtrain.train.state.master import MasterWeights
from flowtrain.train.state.optimizer import build_optimizer

ADAMW = OptimConfig()


@pytest.mark.parametrize(
    ("optim", "stored", "dtype", "bytes_per_trained"),
    [
        (ADAMW, torch.float32, torch.float32, 16),
        (ADAMW, torch.float32, torch.bfloat16, 18),
        (ADAMW, torch.bfloat16, torch.bfloat16, 8),
        (OptimConfig(name="sgd"), torch.float32, torch.bfloat16, 10),
        (OptimConfig(name="sgd", momentum=0.9), torch.float32, torch.float32, 12),
    ],
)
def test_states_take_the_bytes_that_training_allocates(
    optim: OptimConfig, stored: torch.dtype, dtype: torch.dtype, bytes_per_trained: int
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.Linear(40, 56)).to(stored)
    model[0].requires_grad_(False).to(dtype)
    trained = [p for p in model.parameters() if p.requires_grad]
    master = MasterWeights(trained, dtype)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    optimizer = build_optimizer(named, optim)
    model(torch.ones(3, 24, dtype=dtype)).float().sum().backward()
    with master.in_place():
        optimizer.step()
    held = [*model.parameters(), *master._stored, *(p.grad for p in trained)]
    held += [
        value
        for state in optimizer.state.values()
        for name, value in state.items()
        if torch.is_tensor(value) and name != "step"
    ]
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in held}
    parameters = sum(p.numel() for p in model.parameters())
    count = sum(p.numel() for p in trained)
    found = state_bytes(
        parameters, count, optim, itemsize=dtype.itemsize, stored_itemsize=stored.itemsize
    )
    assert found.total == sum(storages.values())
    frozen = (parameters - count) * dtype.itemsize
    assert found.total == frozen + count * bytes_per_trained


def test_more_trained_parameters_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match="trained=3: the module has parameters=2"):
        state_bytes(2, 3, ADAMW, itemsize=4, stored_itemsize=4)
