"""What a module needs of the ranks that hold it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch.distributed.tensor import DTensor


class Parallel(ABC):
    """A strategy: all collectives of a module, and the states that its ranks divide.

    Gradients are of (sum of losses) / N with the global N, so that ranks *sum* them. In each step
    every rank that trains the module calls `last_backward` before its last backward pass, `reduce`
    after it, `finish`, and `clear` once the gradients were used.

    Attributes:
        divides: Whether each rank has a part of the weights alone.
        offloads: Whether weights, gradients and states are in host memory between passes.
    """

    divides = False
    offloads = False

    @abstractmethod
    def prepare(self, module: torch.nn.Module, blocks: Sequence[torch.nn.Module]) -> None:
        """Divide the weights; called before the optimizer is made.

        Args:
            module: The module, with equal weights on all ranks.
            blocks: Those of its modules that are computed one after the other.
        """

    @abstractmethod
    def begin(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Begin to train these parameters; called after a checkpoint was loaded."""

    @abstractmethod
    def last_backward(self) -> None:
        """The next backward pass is the last of the step: sums may start within it."""

    @abstractmethod
    def reduce(self) -> None:
        """Start all sums that have not started, without waiting for any."""

    @abstractmethod
    def finish(self) -> None:
        """Wait for all sums, after `reduce`. Gradients hold the sums then."""

    @abstractmethod
    def clear(self) -> None:
        """Drop the gradients, after the step of the optimizer."""

    def norm(self, gradients: Sequence[torch.Tensor]) -> float:
        """Norm of the gradients, computed as torch.nn.utils.clip_grad_norm_ does."""
        if not gradients:
            return 0.0
        norm = torch.nn.utils.get_total_norm(gradients)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def scale(self, gradients: Sequence[torch.Tensor], factor: float) -> None:
        """Multiply the gradients by a factor, in place."""
        if gradients and factor != 1.0:
            torch._foreach_mul_(list(gradients), factor)
