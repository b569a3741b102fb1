"""What every rank of either world holds, and the part of a step that both share."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from flowtrain.config.schema import RunConfig
from flowtrain.models.adapter import VLMAdapter
from flowtrain.plan import Space, SpaceNeed, StepPlan
from flowtrain.train.control.close import Closing, Report, Verdict
from flowtrain.train.control.heartbeat import Activity
from flowtrain.train.control.store import Board
from flowtrain.train.control.world import World
from flowtrain.train.planning.planner import Plans
from flowtrain.train.records.records import RecordReceiver, RecordSender
from flowtrain.train.state.optimizer import build_optimizer, build_schedule
from flowtrain_core import Pool

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """A rank's place in the job: everything that is set up before its first step."""

    config: RunConfig
    world: World
    board: Board
    pool: Pool
    activity: Activity
    adapter: VLMAdapter
    plans: Plans
    space: Space

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.config.model.dtype]

    def need(self, plan: StepPlan) -> SpaceNeed:
        """Minimum slabs of each segment for this plan.

        Raises:
            SpaceError: The pool is too small for it.
        """
        need = self.space.need(plan)
        self._fit(need, f"step {plan.step}")
        return need

    def granted(self) -> SpaceNeed:
        """Slabs of each segment at the start, from the first plans and the pool's size.

        The largest segments that these plans ask for may not fit side by side where each plan
        does: then there are none yet, and each plan gets its own share.
        """
        need = self.plans.layout()
        if not self._holds(need):
            return SpaceNeed(activation=0, gradient=0)
        return self._fit(need, "the first steps")

    def check_space(self, plan: StepPlan, granted: SpaceNeed) -> SpaceNeed:
        """Slabs of each segment with which this plan can be carried out.

        Segments grow; where the pool cannot hold the grown ones, it is shared out anew.

        Raises:
            SpaceError: The pool is too small for this plan.
        """
        need = self.space.need(plan)
        if need.join(granted) == granted:
            return granted
        share = self._fit(need, f"step {plan.step}")
        grown = share.join(granted)
        return grown if self._holds(grown) else share

    def receiver(self) -> RecordReceiver:
        """Takes records out of this rank's inbox."""
        return RecordReceiver(
            self.pool,
            inbox=self.world.label,
            space=self.space,
            activity=self.activity,
        )

    def sender(self, readers: Literal["encoder", "backbone"]) -> RecordSender:
        """Sends records to the inboxes of one world's ranks."""
        flow = self.config.flow
        return RecordSender(
            self.pool,
            readers=readers,
            num_readers=flow.encoders if readers == "encoder" else flow.backbones,
            space=self.space,
            dtype=self.dtype,
            activity=self.activity,
        )

    def _holds(self, need: SpaceNeed) -> bool:
        flow, pool = self.config.flow, self.config.pool
        limit = self.space.limit_bytes(pool_bytes=pool.bytes, max_slabs=pool.max_cells)
        size = self.space.total_bytes(need, encoders=flow.encoders, backbones=flow.backbones)
        return size <= limit

    def _fit(self, need: SpaceNeed, who: str) -> SpaceNeed:
        flow, pool = self.config.flow, self.config.pool
        return self.space.fit(
            need,
            encoders=flow.encoders,
            backbones=flow.backbones,
            pool_bytes=pool.bytes,
            max_slabs=pool.max_cells,
            scale=pool.scale,
            who=who,
        )


@dataclass(slots=True)
class Module:
    """One module with its optimizer: the part of the model that a world trains."""

    module: torch.nn.Module
    optimizer: torch.optim.Optimizer | None
    schedule: torch.optim.lr_scheduler.LRScheduler | None
    stepped: int = 0
    """Steps that the optimizer has taken; 0 means that it holds no state yet."""

    @staticmethod
    def build(module: torch.nn.Module, config: RunConfig, *, trains: bool) -> Module:
        if not trains:
            module.requires_grad_(False)
            return Module(module, None, None)
        optimizer = build_optimizer(module.parameters(), config.optim)
        schedule = build_schedule(optimizer, config.optim, steps=config.train.steps)
        return Module(module, optimizer, schedule)

    @property
    def trained(self) -> list[torch.nn.Parameter]:
        return [p for p in self.module.parameters() if p.requires_grad]

    def norm(self) -> float:
        """Norm of the gradients, the way torch.nn.utils.clip_grad_norm_ takes it."""
        grads = [p.grad for p in self.trained if p.grad is not None]
        return float(torch.nn.utils.get_total_norm(grads)) if grads else 0.0

    def apply(self, verdict: Verdict, *, saw_samples: bool) -> None:
        """Step the optimizer, or drop the gradients; the schedule moves on either way."""
        if self.optimizer is None:
            return
        if verdict.action == "apply" and saw_samples:
            if verdict.scale != 1.0:
                for parameter in self.trained:
                    if parameter.grad is not None:
                        parameter.grad.mul_(verdict.scale)
            self.optimizer.step()
            self.stepped += 1
        self.optimizer.zero_grad(set_to_none=True)
        if self.schedule is not None:
            with _quiet_schedule():
                self.schedule.step()

    def restore_schedule(self, steps: int) -> None:
        """Bring a fresh schedule to where it was after so many steps."""
        if self.schedule is not None:
            with _quiet_schedule():
                for _ in range(steps):
                    self.schedule.step()

    @property
    def lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"]) if self.optimizer else 0.0


@contextlib.contextmanager
def _quiet_schedule() -> Iterator[None]:
    """A skipped step moves the schedule without its optimizer, which PyTorch warns about."""
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*optimizer.step.*")
        yield


def seed_dropout(seed: int, step: int, *place: int) -> None:
    """Seed what a forward pass draws, so that recomputation and reruns draw the same.

    Args:
        seed: `train.seed`.
        step: Step of the pass.
        place: What the pass computes: the item of an encoder, or rank and slot of a backbone.
    """
    torch.manual_seed(hash((seed, step, *place)) & (2**63 - 1))


def build_closing(seat: Seat) -> Closing:
    """The exchange that closes the steps of a run."""
    config = seat.config
    worlds = {"encoder": config.flow.encoders, "backbone": config.flow.backbones}
    if config.flow.mode == "frozen":
        del worlds["encoder"]
    return Closing(
        seat.board,
        worlds=worlds,
        clip_norm=config.optim.clip_norm,
        nonfinite=config.train.nonfinite,
    )


def close_step(
    seat: Seat, closing: Closing, module: Module, plan: StepPlan, report: Report
) -> Verdict:
    """Report this world's part of a step, hear the verdict, and carry it out."""
    if seat.world.leads:
        closing.report(seat.world.name, plan.step, report)
    verdict = closing.verdict(plan)
    module.apply(verdict, saw_samples=seat.world.name == "backbone" or bool(plan.items))
    return verdict


class Delays:
    """Random pauses before a rank's actions, to provoke orders that rarely happen."""

    def __init__(self, config: RunConfig, label: str) -> None:
        self._limit_s = config.debug.delay_ms / 1e3
        self._random = random.Random(f"{config.train.seed}/{label}")

    def pause(self) -> None:
        if self._limit_s:
            time.sleep(self._random.uniform(0, self._limit_s))
