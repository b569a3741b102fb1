"""The parts of a model on one side of the cut, with their optimizer and schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from flowtrain.config.model import Part
from flowtrain.train.control.exchange import StepDecision
from flowtrain.train.parallel.interface import Parallel
from flowtrain.train.parallel.replicated import Replicated
from flowtrain.train.state.master import MasterWeights
from flowtrain.train.state.optimizer import advance, build_optimizer, build_schedule
from flowtrain.train.state.trained import Trained


def _all(_name: str) -> bool:
    return True


def _backbone(_name: str) -> Part:
    return "backbone"


@dataclass(slots=True)
class ModuleState:
    """The parts of a model on one side of the cut, with their optimizer and schedule.

    Attributes:
        module: The model, which a colocated rank shares with the other side.
        holds: Whether a parameter or buffer of the model is on this side, by its name.
        part_of: The part that a parameter of the model belongs to, by its name.
        optimizer: None if nothing on this side trains.
        master: The parameters that train as they are stored, if the passes have another dtype.
        schedule: None if nothing on this side trains.
        stepped: Steps that the optimizer has taken; at 0 it has no state yet.
        parallel: What the ranks of the module do together.
        parameters: Parameters on this side, in the model's order.
        trainable: Those that have gradients.
        of_images: Those of encoder and projector, which have no gradient in a step without images.
    """

    module: torch.nn.Module
    holds: Callable[[str], bool]
    part_of: Callable[[str], Part] = _backbone
    optimizer: torch.optim.Optimizer | None = None
    master: MasterWeights = field(default_factory=lambda: MasterWeights([], torch.float32))
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None
    stepped: int = 0
    parallel: Parallel = field(default_factory=Replicated)
    parameters: list[torch.nn.Parameter] = field(init=False)
    trainable: list[torch.nn.Parameter] = field(init=False)
    of_images: list[torch.nn.Parameter] = field(init=False)

    def __post_init__(self) -> None:
        named = [(name, p) for name, p in self.module.named_parameters() if self.holds(name)]
        self.parameters = [p for _, p in named]
        self.trainable = [p for p in self.parameters if p.requires_grad]
        self.of_images = [
            p for name, p in named if p.requires_grad and self.part_of(name) != "backbone"
        ]

    @staticmethod
    def build(
        module: torch.nn.Module,
        trained: Trained,
        *,
        dtype: torch.dtype,
        steps: int,
        part_of: Callable[[str], Part] = _backbone,
        holds: Callable[[str], bool] = _all,
        parallel: Parallel | None = None,
        blocks: Sequence[torch.nn.Module] = (),
        fill: Callable[[torch.nn.Module], None] | None = None,
    ) -> ModuleState:
        """Freeze the parts that do not train, and add optimizer and schedule for the others.

        Args:
            module: The model, in the dtype in which it is stored.
            trained: What trains, and the optimizer.
            dtype: Dtype of the passes.
            steps: Steps of the schedule.
            part_of: The part that a parameter belongs to, by its name.
            holds: Whether a parameter is on this side, by its name.
            parallel: What the ranks of the module do together; None for a single process.
            blocks: Modules that are computed one after the other, and divided each on its own.
            fill: Gives the divided module its weights; None if it has them.
        """
        trained.freeze(module, part_of=part_of, holds=holds, dtype=dtype)
        own = parallel is None
        parallel = parallel or Replicated()
        parallel.prepare(module, blocks)
        if fill is not None:
            fill(module)
        side = ModuleState(module, holds, part_of, parallel=parallel)
        if not parallel.divides:  # Else the ranks divide what is stored, and cast what they gather.
            side.master = MasterWeights(side.trainable, dtype)
        if side.trainable:
            named = [(n, p) for n, p in module.named_parameters() if holds(n) and p.requires_grad]
            side.optimizer = build_optimizer(named, trained.optim)
            side.schedule = build_schedule(side.optimizer, trained.optim, steps=steps)
        if own:
            side.begin()
        return side

    def begin(self) -> None:
        """Begin to train; called after a checkpoint was loaded."""
        self.parallel.begin(self.trainable)

    def norm(self) -> float:
        """Norm of the gradients, once they are summed over the ranks."""
        return self.parallel.norm(self._grads())

    def apply(self, decision: StepDecision, *, saw_images: bool) -> None:
        """Step the optimizer or drop the gradients; the schedule advances in both cases.

        Args:
            decision: What to do with the gradients.
            saw_images: Whether any rank had an image in this step; without any, encoder and
                projector are not stepped, as in a plain loop.
        """
        if self.optimizer is None:
            return
        if decision.action == "apply" and (saw_images or len(self.of_images) < len(self.trainable)):
            with self._without_images(saw_images), self.master.in_place():
                self.parallel.scale(self._grads(), decision.scale)
                self.optimizer.step()
            self.stepped += 1
        self.parallel.clear()
        if self.schedule is not None:
            advance(self.schedule)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of all parameters, until the schedule advances."""
        if self.optimizer is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = rate

    def complete_state(self) -> None:
        """Create the optimizer's state of parameters that have not been stepped.

        A checkpoint has the state of either none or all of them. Zeros are the state of a parameter
        before its first step, with AdamW and with SGD.
        """
        if self.optimizer is None or not self.optimizer.state:
            return
        stepped, state = next(iter(self.optimizer.state.items()))
        for parameter in self.trainable:
            if parameter not in self.optimizer.state:
                self.optimizer.state[parameter] = {
                    name: _zeros_like(value, stepped, parameter) for name, value in state.items()
                }

    @contextmanager
    def _without_images(self, saw_images: bool) -> Iterator[None]:
        """Take the gradients away that only images could have made, and give them back."""
        taken = [] if saw_images else [(p, p.grad) for p in self.of_images]
        for parameter, _ in taken:
            parameter.grad = None
        yield
        for parameter, gradient in taken:
            parameter.grad = gradient

    def restore_schedule(self, steps: int) -> None:
        """Advance a new schedule by a number of steps."""
        if self.schedule is not None:
            advance(self.schedule, steps)

    def _grads(self) -> list[torch.Tensor]:
        return [p.grad for p in self.trainable if p.grad is not None]


def _zeros_like(value: Any, of: torch.Tensor, parameter: torch.Tensor) -> Any:
    """Zeros in place of a value of the state of another parameter."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.zeros_like(parameter if value.shape == of.shape else value)
