"""The encoder's optimizer treats each parameter as the loop's would have."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from flowtrain.config import ConfigError
from flowtrain.config.optim import OptimConfig
from flowtrain.config.tree import build
from flowtrain.train.connect.optimizer import (
    EncoderGroups,
    check_parameters,
    check_state,
    group_options,
    set_group_options,
    take_out,
)
from flowtrain.train.state.optimizer import build_optimizer


def parameters() -> dict[str, torch.nn.Parameter]:
    """Those of an encoder."""
    shapes = {"patch": (4, 3), "query": (4, 4), "bias": (4,), "scale": (4,)}
    return {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()}


# Of the Hugging Face Trainer (no bias or norm decays, but other vectors do), and of simpler loops.
@pytest.mark.parametrize(
    ("decaying", "vectors", "others"),
    [
        ({"patch", "query", "scale"}, False, 1),
        ({"patch", "query"}, False, 0),
        ({"patch", "query", "bias", "scale"}, True, 0),
        ({"query"}, True, 1),
        (set(), True, 0),
    ],
)
def test_each_parameter_has_the_weight_decay_of_its_group(
    decaying: set[str], vectors: bool, others: int
) -> None:
    own, other = parameters(), torch.nn.Parameter(torch.zeros(2, 2))
    groups = [
        {"params": [p for n, p in own.items() if n in decaying] + [other], "weight_decay": 0.1},
        {"params": [p for n, p in own.items() if n not in decaying], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.5, betas=(0.8, 0.9), eps=1e-3)
    found = EncoderGroups(optimizer, own)
    section = found.section()
    assert section["decay_vectors"] == vectors and len(section["groups"]) == others
    built = build_optimizer(own.items(), build(OptimConfig, section, source="optim"))
    names = {id(parameter): name for name, parameter in own.items()}
    seen = {
        names[id(parameter)]: group["weight_decay"]
        for group in built.param_groups
        for parameter in group["params"]
    }
    assert seen == {name: 0.1 if name in decaying else 0.0 for name in own}
    [options] = {(g["lr"], g["betas"], g["eps"]) for g in built.param_groups}
    assert options == (0.5, (0.8, 0.9), 1e-3)
    take_out(optimizer, own)
    assert [p for group in optimizer.param_groups for p in group["params"]] == [other]
    for group in optimizer.param_groups:
        group["lr"] = 0.25
    assert found.rate(optimizer) == 0.25


def refused(make: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        make()
    return str(caught.value)


def test_an_optimizer_that_the_encoder_cannot_have_is_refused() -> None:
    own = parameters()
    patch, *others = own.values()

    def of(optimizer: torch.optim.Optimizer) -> str:
        return refused(lambda: EncoderGroups(optimizer, own))

    assert "no Adagrad" in of(torch.optim.Adagrad(own.values()))
    assert "has 3 of the 4 parameters" in of(torch.optim.SGD(others))
    two: list[dict[str, Any]] = [{"params": [patch], "lr": 0.1}, {"params": others, "lr": 0.2}]
    assert "have lr=0.1, 0.2; give them one" in of(torch.optim.SGD(two))
    assert "nesterov=True" in of(torch.optim.SGD(own.values(), momentum=0.1, nesterov=True))
    changed = torch.optim.SGD([{"params": [patch]}, {"params": others}])
    found = EncoderGroups(changed, own)
    changed.param_groups[1]["lr"] = 0.5
    assert "have learning rates 0.001, 0.5" in refused(lambda: found.rate(changed))


def test_a_rate_of_zero_is_that_of_a_warm_up() -> None:
    own = parameters()
    optimizer = torch.optim.AdamW(own.values(), lr=0.5)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    found = EncoderGroups(optimizer, own)
    assert (found.section()["lr"], found.rate(optimizer)) == (0.5, 0.0)


def test_parameters_of_another_model_are_refused() -> None:
    model = torch.nn.Linear(2, 3)
    check_parameters(torch.optim.SGD(model.parameters()), model)
    optimizer = torch.optim.SGD([*model.parameters(), torch.nn.Parameter(torch.zeros(4, 2))])
    with pytest.raises(ConfigError, match=r"^optimizer: 1 of its 3 parameters .* shape \[4, 2\];"):
        check_parameters(optimizer, model)
    with pytest.raises(ConfigError, match="^optimizer: Adagrad has a state already; connect befo"):
        check_parameters(torch.optim.Adagrad(model.parameters()), model)


def test_options_that_the_encoder_does_not_follow_must_stay() -> None:
    own = parameters()
    optimizer = torch.optim.AdamW(own.values(), lr=0.5)
    found = EncoderGroups(optimizer, own)
    torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=5)
    with pytest.raises(ConfigError, match=r"^optimizer: betas=\(0.95, 0.999\) in place of \(0.9, "):
        found.rate(optimizer)


def test_a_state_that_no_checkpoint_can_have_is_refused() -> None:
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = torch.optim.AdamW([weight])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    check_state(optimizer)
    optimizer.state[weight]["rms"] = 0.5
    with pytest.raises(ConfigError, match="^optimizer: AdamW keeps rms as float, and checkpoints"):
        check_state(optimizer)


def test_a_scheduler_goes_on_from_the_rates_of_its_state() -> None:
    """A scheduler that multiplies the rate of the group does not restore it itself."""

    def make() -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        optimizer = torch.optim.SGD(parameters().values(), lr=0.1)
        return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    (optimizer, scheduler), (again, other) = make(), make()
    optimizer.step()
    scheduler.step()
    state = json.loads(json.dumps(group_options(optimizer)))
    other.load_state_dict(scheduler.state_dict())
    set_group_options(again, state)
    for each in (optimizer, again):
        each.step()
    scheduler.step()
    other.step()
    assert again.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.025
    with pytest.raises(ConfigError, match="has 1 groups, and that of the state had 2"):
        set_group_options(again, [*state, *state])
