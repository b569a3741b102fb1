"""Optimizer and learning rate schedule of one module, as in a plain PyTorch loop."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim import lr_scheduler

from flowtrain.config.checks import ConfigError
from flowtrain.config.optim import OptimConfig, ParameterGroup


def group_of(name: str, config: OptimConfig) -> ParameterGroup | None:
    """The group of `optim.groups` that a parameter belongs to, or None."""
    return next((group for group in config.groups if fnmatchcase(name, group.match)), None)


def check_groups(config: OptimConfig, names: Iterable[str]) -> None:
    """Refuse a group that has no parameter.

    Args:
        config: Section `optim`.
        names: Names of all parameters of the model.

    Raises:
        ConfigError: No parameter belongs to a group.
    """
    if not config.groups:
        return
    names = list(names)
    found = {group_of(name, config) for name in names}
    for number, group in enumerate(config.groups):
        if group not in found:
            raise ConfigError(
                f"optim.groups.{number}.match={group.match!r}: no parameter of the model belongs "
                f"to it, or all of them to groups before it; names are such as {names[0]} and "
                f"{names[-1]}"
            )


def build_optimizer(
    named: Iterable[tuple[str, torch.nn.Parameter]], config: OptimConfig
) -> torch.optim.Optimizer:
    """Optimizer of one module.

    No group is empty: torch could not load its state. `fused` computes the same formula in one pass
    over each parameter instead of ten.

    Args:
        named: The parameters that train, with their names.
        config: Section `optim`.
    """
    groups: dict[tuple[float, float], list[torch.nn.Parameter]] = {}
    for name, parameter in named:
        groups.setdefault(_options(name, parameter, config), []).append(parameter)
    parameters: list[dict[str, Any]] = [
        {"params": members, "lr": lr, "weight_decay": decay}
        for (lr, decay), members in groups.items()
    ]
    if config.name == "sgd":
        # On the CPU torch's fused SGD computes wrong values in bfloat16. It takes no DTensor.
        members = [parameter for group in parameters for parameter in group["params"]]
        fused = all(
            (p.is_cuda or p.dtype != torch.bfloat16) and not isinstance(p, DTensor) for p in members
        )
        return torch.optim.SGD(parameters, lr=config.lr, momentum=config.momentum, fused=fused)
    return torch.optim.AdamW(
        parameters, lr=config.lr, betas=config.betas, eps=config.eps, fused=True
    )


def _options(name: str, parameter: torch.nn.Parameter, config: OptimConfig) -> tuple[float, float]:
    """Learning rate and weight decay of a parameter."""
    decays = config.decay_vectors or parameter.ndim >= 2
    lr, decay = config.lr, config.weight_decay if decays else 0.0
    if (group := group_of(name, config)) is not None:
        lr = lr if group.lr is None else group.lr
        decay = decay if group.weight_decay is None else group.weight_decay
    return lr, decay


def build_schedule(
    optimizer: torch.optim.Optimizer, config: OptimConfig, *, steps: int
) -> lr_scheduler.LRScheduler:
    """Learning rates over `steps`, the same in both worlds."""
    if config.schedule == "onecycle":
        return lr_scheduler.OneCycleLR(
            optimizer,
            max_lr=[group["lr"] for group in optimizer.param_groups],
            total_steps=steps,
            cycle_momentum=False,
        )
    rest = steps - config.warmup_steps
    main: lr_scheduler.LRScheduler
    if config.schedule == "linear":
        main = lr_scheduler.LinearLR(optimizer, 1.0, config.min_lr_ratio, total_iters=rest)
    elif config.schedule == "cosine":
        # CosineAnnealingLR has the same minimum for all groups.
        least = config.min_lr_ratio
        main = lr_scheduler.LambdaLR(
            optimizer,
            lambda step: least + (1 - least) * (1 + math.cos(math.pi * step / rest)) / 2,
        )
    else:
        main = lr_scheduler.ConstantLR(optimizer, factor=1.0, total_iters=0)
    if config.warmup_steps == 0:
        return main
    warmup = lr_scheduler.LinearLR(
        optimizer, 1.0 / (config.warmup_steps + 1), 1.0, total_iters=config.warmup_steps
    )
    return lr_scheduler.SequentialLR(optimizer, [warmup, main], [config.warmup_steps])


def advance(schedule: lr_scheduler.LRScheduler, steps: int = 1) -> None:
    """Advance a schedule, also where its optimizer does not step, about which PyTorch warns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*optimizer.step.*")
        for _ in range(steps):
            schedule.step()


class LearningRates:
    """Learning rates of the steps of a run, which the configuration alone determines.

    Any rank knows them, also those of parameters that only other ranks hold.

    Args:
        config: Section `optim`.
        groups: Those of `optim.groups` that train.
        steps: Steps of the run.
    """

    def __init__(
        self, config: OptimConfig, groups: Sequence[ParameterGroup], *, steps: int
    ) -> None:
        self._names = [group.match for group in groups]
        peaks = [config.lr, *(config.lr if group.lr is None else group.lr for group in groups)]
        # Schedules are defined on an optimizer; the values of its parameters do not matter.
        self._optimizer = torch.optim.SGD(
            [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": peak} for peak in peaks]
        )
        self._schedule = build_schedule(self._optimizer, config, steps=steps)
        self._step = 0

    def at(self, step: int) -> tuple[float, dict[str, float]]:
        """Rate of the parameters in no group, and that of each group by its pattern.

        Args:
            step: Step, from 0; not before that of the last call.
        """
        advance(self._schedule, step - self._step)
        self._step = step
        rate, *rates = (float(group["lr"]) for group in self._optimizer.param_groups)
        return rate, dict(zip(self._names, rates, strict=True))
