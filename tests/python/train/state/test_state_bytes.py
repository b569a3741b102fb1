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
    ("optim", "dtype", "bytes_per_trained"),
    [
        (ADAMW, torch.float32, 16),
        (ADAMW, torch.bfloat16, 18),
        (OptimConfig(master_weights=False), torch.bfloat16, 8),
        (OptimConfig(name="sgd"), torch.bfloat16, 10),
        (OptimConfig(name="sgd", momentum=0.9), torch.float32, 12),
    ],
)
def test_states_take_the_bytes_that_training_allocates(
    optim: OptimConfig, dtype: torch.dtype, bytes_per_trained: int
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.Linear(40, 56)).to(dtype)
    model[0].requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    master = MasterWeights(trained if optim.master_weights else [], dtype)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    optimizer = build_optimizer(named, optim)
    model(torch.ones(3, 24, dtype=dtype)).float().sum().backward()
    with master.in_place():
        optimizer.step()
    held = [*model.parameters(), *master._copies, *(p.grad for p in trained)]
    held += [
        value
        for state in optimizer.state.values()
        for name, value in state.items()
        if torch.is_tensor(value) and name != "step"
    ]
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in held}
    parameters = sum(p.numel() for p in model.parameters())
    count = sum(p.numel() for p in trained)
    found = state_bytes(parameters, count, optim, itemsize=dtype.itemsize)
    assert found.total == sum(storages.values())
    frozen = (parameters - count) * dtype.itemsize
    assert found.total == frozen + count * bytes_per_trained


def test_more_trained_parameters_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match="trained=3: the module has parameters=2"):
        state_bytes(2, 3, ADAMW, itemsize=4)
