"""The encoder's optimizer, as that of the loop is set, and the loop's without the encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from flowtrain.config.checks import ConfigError

_NAMES: dict[type[torch.optim.Optimizer], str] = {
    torch.optim.SGD: "sgd",
    torch.optim.AdamW: "adamw",
}
_TAKEN = {
    "sgd": ("lr", "momentum", "weight_decay"),
    "adamw": ("lr", "betas", "eps", "weight_decay"),
}
# Options that change what a step computes, and that the encoder's optimizer does not have.
_OTHERS = {"dampening": 0, "nesterov": False, "amsgrad": False, "maximize": False}


def group_of(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter]) -> int:
    """Number of the group of an optimizer that has these parameters.

    Args:
        optimizer: The optimizer, which has not stepped.
        parameters: Parameters of the encoder.

    Raises:
        ConfigError: They are not in one group, or the encoder cannot have such an optimizer.
    """
    if type(optimizer) not in _NAMES:
        raise ConfigError(
            f"optimizer: the encoder has no {type(optimizer).__name__}; use torch.optim.SGD or "
            "torch.optim.AdamW"
        )
    if optimizer.state:
        raise ConfigError("optimizer: it has stepped already; connect before the first step")
    wanted = {id(parameter) for parameter in parameters}
    found = [
        (group, sum(id(parameter) in wanted for parameter in group["params"]))
        for group in optimizer.param_groups
    ]
    for number, (group, count) in enumerate(found):
        if count == len(parameters):
            _check(group, type(optimizer).__name__)
            return number
    counts = ", ".join(str(count) for _, count in found)
    raise ConfigError(
        f"optimizer: its groups have {counts} of the {len(parameters)} parameters of encoder and "
        "projector; put all of them into one group"
    )


def section_of(optimizer: torch.optim.Optimizer, number: int) -> dict[str, Any]:
    """Section `optim` of a run whose modules have this optimizer.

    Args:
        optimizer: The optimizer.
        number: Number of its group whose options hold.
    """
    name = _NAMES[type(optimizer)]
    group = optimizer.param_groups[number]
    options = {option: group[option] for option in _TAKEN[name]}
    if "betas" in options:
        options["betas"] = list(options["betas"])
    return {"name": name, "decay_vectors": True, **options}


def take_out(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.nn.Parameter]) -> None:
    """Take parameters out of an optimizer.

    A group that has no others stays, so that schedulers go on to set its learning rate.
    """
    taken = {id(parameter) for parameter in parameters}
    for group in optimizer.param_groups:
        group["params"] = [p for p in group["params"] if id(p) not in taken]


def _check(group: Mapping[str, Any], name: str) -> None:
    for option, value in _OTHERS.items():
        if group.get(option, value) != value:
            raise ConfigError(
                f"optimizer: {name} with {option}={group[option]}, which the encoder's does not "
                f"have; leave {option} out"
            )
