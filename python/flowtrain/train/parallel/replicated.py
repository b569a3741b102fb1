"""Replicated modules: each rank has all weights and states, and gradients are summed in buckets."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from flowtrain.train.control.world import World
from flowtrain.train.parallel.buckets import GradientBuckets
from flowtrain.train.parallel.interface import Parallel


class Replicated(Parallel):
    """Each rank has all weights, gradients and states.

    Args:
        world: The ranks of the module; None for a module that has only this process.
        reduce_dtype: Dtype in which gradients are summed; None for their own.
    """

    def __init__(
        self, world: World | None = None, *, reduce_dtype: torch.dtype | None = None
    ) -> None:
        self._world = world
        self._reduce_dtype = reduce_dtype
        self._buckets: GradientBuckets | None = None
        self._parameters: Sequence[torch.nn.Parameter] = ()

    def prepare(self, module: torch.nn.Module, blocks: Sequence[torch.nn.Module]) -> None:
        """Nothing is divided."""

    def begin(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        if self._world is not None and self._world.size > 1:
            self._buckets = GradientBuckets(
                parameters,
                activity=self._world.activity,
                awaited=f"the other {self._world.name} ranks",
                reduce_on=self._world.reduce_on,
                reduce_dtype=self._reduce_dtype,
            )

    def last_backward(self) -> None:
        if self._buckets is not None:
            self._buckets.arm()

    def reduce(self) -> None:
        if self._buckets is not None:
            self._buckets.flush()

    def finish(self) -> None:
        if self._buckets is not None:
            self._buckets.finish()

    def clear(self) -> None:
        if self._buckets is not None:
            self._buckets.clear()
            return
        for parameter in self._parameters:
            parameter.grad = None
