"""Weights of past steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from flowtrain.train.state.master import with_data


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
        with with_data(self._parameters, self._kept[version]):
            yield
