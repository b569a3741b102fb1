"""The parts of a step that both worlds share."""

from __future__ import annotations

import random
import time

import torch

from flowtrain.config.schema import RunConfig
from flowtrain.steps import StepPlan
from flowtrain.train.control.close import StepClose, StepDecision, StepReport
from flowtrain.train.ranks.context import RankContext
from flowtrain.train.state.module import Module


def seed_dropout(seed: int, step: int, *place: int) -> None:
    """Seed the random numbers of a forward pass; recomputation and reruns draw the same.

    Args:
        seed: `train.seed`.
        step: Step of the pass.
        place: What the pass computes: the item on an encoder rank, or rank and slot on a backbone
            rank.
    """
    torch.manual_seed(hash((seed, step, *place)) & (2**63 - 1))


def build_close(context: RankContext) -> StepClose:
    """The exchange that closes each step of a run."""
    config = context.config
    worlds = {"encoder": config.flow.encoder_ranks, "backbone": config.flow.backbone_ranks}
    if config.flow.mode == "frozen":
        del worlds["encoder"]
    return StepClose(
        context.store,
        worlds=worlds,
        clip_norm=config.optim.clip_norm,
        nonfinite=config.train.nonfinite,
    )


def close_step(
    context: RankContext, close: StepClose, module: Module, plan: StepPlan, report: StepReport
) -> StepDecision:
    """Report this world's part of a step, wait for the decision, and apply it."""
    world = context.world
    if world.is_leader:
        close.report(world.name, plan.step, report)
    decision = close.decide(plan)
    module.apply(decision, saw_samples=world.name == "backbone" or bool(plan.items))
    return decision


class Delays:
    """Random pauses before a rank's actions, so that tests meet orders that rarely happen."""

    def __init__(self, config: RunConfig, label: str) -> None:
        self._limit_s = config.debug.delay_ms / 1e3
        self._random = random.Random(f"{config.train.seed}/{label}")

    def pause(self) -> None:
        if self._limit_s:
            time.sleep(self._random.uniform(0, self._limit_s))
