"""Optimizer and learning rate schedule of one module, as in a plain PyTorch loop."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.optim import lr_scheduler

from flowtrain.config.schema import OptimConfig


def build_optimizer(
    parameters: Iterable[torch.nn.Parameter], config: OptimConfig
) -> torch.optim.Optimizer:
    """Optimizer of one module; all parameters are in one group.

    `fused` computes the same formula in one pass over each parameter instead of ten.
    """
    if config.name == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=config.lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            fused=True,
        )
    return torch.optim.AdamW(
        parameters,
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


def build_schedule(
    optimizer: torch.optim.Optimizer, config: OptimConfig, *, steps: int
) -> lr_scheduler.LRScheduler:
    """Learning rate over a run of `steps`, the same in both worlds."""
    if config.schedule == "onecycle":
        return lr_scheduler.OneCycleLR(
            optimizer, max_lr=config.lr, total_steps=steps, cycle_momentum=False
        )
    rest = steps - config.warmup_steps
    main: lr_scheduler.LRScheduler
    if config.schedule == "linear":
        main = lr_scheduler.LinearLR(optimizer, 1.0, config.min_lr_ratio, total_iters=rest)
    elif config.schedule == "cosine":
        least = config.lr * config.min_lr_ratio
        main = lr_scheduler.CosineAnnealingLR(optimizer, T_max=rest, eta_min=least)
    else:
        main = lr_scheduler.ConstantLR(optimizer, factor=1.0, total_iters=0)
    if config.warmup_steps == 0:
        return main
    warmup = lr_scheduler.LinearLR(
        optimizer, 1.0 / (config.warmup_steps + 1), 1.0, total_iters=config.warmup_steps
    )
    return lr_scheduler.SequentialLR(optimizer, [warmup, main], [config.warmup_steps])
