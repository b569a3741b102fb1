"""A linear module that one backbone rank trains, with checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch

from flowtrain.config import RunConfig, dump, from_dict
from flowtrain.config.model import Part
from flowtrain.models.dtypes import DTYPES
from flowtrain.steps import StepPlan
from flowtrain.train.control.exchange import StepDecision
from flowtrain.train.state.checkpoint import Checkpoints
from flowtrain.train.state.module import ModuleState
from flowtrain.train.state.trained import Trained

APPLY = StepDecision(action="apply", scale=1.0, loss=0.0, grad_norm=0.0, num_targets=1, seconds={})


def configuration(folder: Path, **sections: dict[str, Any]) -> RunConfig:
    tree: dict[str, Any] = {
        "run": folder / "run",
        "model": {"config": folder / "model"},
        "data": {"path": folder / "data.jsonl"},
        "train": {"steps": 6},
        "checkpoint": {"every": 2, "keep": 9},
    }
    for name, section in sections.items():
        tree[name] = {**tree.get(name, {}), **section}
    return from_dict(tree)


def part_of(name: str) -> Part:
    """The bias stands for a projector."""
    return "projector" if name == "bias" else "backbone"


def rate(module: ModuleState) -> float:
    """Learning rate of the first group of the optimizer."""
    assert module.optimizer is not None
    return float(module.optimizer.param_groups[0]["lr"])


def module_of(module: torch.nn.Module, config: RunConfig, **options: Any) -> ModuleState:
    """A module as a run trains it."""
    return ModuleState.build(
        module,
        Trained(config.trained_parts, config.optim),
        dtype=DTYPES[config.model.pass_dtype],
        steps=config.schedule_steps,
        **options,
    )


def train(
    config: RunConfig,
    first: int = 0,
    *,
    ranks: int = 1,
    without_images: Collection[int] = (),
    eval_losses: Mapping[int, float] = MappingProxyType({}),
    draws: int = 0,
) -> tuple[list[float], ModuleState]:
    """Train from step `first` on; return the learning rate of each step, and the module.

    Each step draws `draws` samples.
    """
    torch.manual_seed(config.train.seed)
    linear = torch.nn.Linear(3, 2, dtype=DTYPES[config.model.dtype])
    module = module_of(linear, config, part_of=part_of)
    world: Any = SimpleNamespace(name="backbone", size=ranks, commits=True)
    store: Any = SimpleNamespace(get=lambda *_, **__: {"encoder": 0}, delete=lambda _: None)
    store.clone = lambda: store
    checkpoints = Checkpoints(
        config.run,
        config.checkpoint,
        world,
        {"backbone": module},
        store,
        config_text=dump(config),
        adapters=False,
        keeps_best=config.eval.keep_best,
    )
    if first:
        checkpoints.load(config.run / "checkpoints" / f"step-{first:08d}")
    rates = []
    for step in range(first, config.train.steps):
        torch.manual_seed(step)
        for parameter in module.trainable:
            parameter.grad = torch.randn(parameter.shape)
        rates.append(rate(module))
        module.apply(APPLY, saw_images=step not in without_images)
        plan = StepPlan(step=step, kind="train", cursor=(step + 1) * draws)
        if config.is_saved(step):
            checkpoints.save(plan, eval_losses.get(step))
        checkpoints.poll()
    checkpoints.wait()
    return rates, module
