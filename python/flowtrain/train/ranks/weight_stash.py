"""Weights of past steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch


class WeightStash:
    """Copies of parameters: those of the current step and of the `depth` steps before it.

    A `bounded` encoder recomputes an item under the weights that encoded it.

    Args:
        parameters: The parameters.
        depth: Number of earlier steps; 0 keeps no copies.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], depth: int) -> None:
        self._parameters = parameters
        self._depth = depth
        self._kept: dict[int, list[torch.Tensor]] = {}

    def save(self, version: int) -> None:
        """Copy the current weights under their version, and drop the oldest copy."""
        if self._depth and version not in self._kept:
            self._kept[version] = [p.detach().clone() for p in self._parameters]
            self._kept.pop(version - self._depth - 1, None)

    @contextmanager
    def restored(self, version: int) -> Iterator[None]:
        """Within the block, the parameters have the values of that version."""
        current = [p.data for p in self._parameters]
        for parameter, old in zip(self._parameters, self._kept[version], strict=True):
            parameter.data = old
        try:
            yield
        finally:
            for parameter, data in zip(self._parameters, current, strict=True):
                parameter.data = data
