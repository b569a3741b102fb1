"""Weights of past steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from flowtrain.train.state.master import with_data


class WeightStash:
    """Copies of parameters: those of the current step and of the `depth` steps before it.

    The backward pass of a `bounded` encoder is that of the weights that encoded an item, which the
    optimizer has changed since.

    Args:
        parameters: The parameters.
        depth: Number of earlier steps; 0 keeps no copies.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], depth: int) -> None:
        self._parameters = parameters
        self._depth = depth
        if depth:
            for parameter in parameters:
                # `in_graphs` tells parameters apart by their storages.
                if parameter.untyped_storage().nbytes() != parameter.nbytes:
                    parameter.data = parameter.data.clone()
        self._kept: dict[int, list[torch.Tensor]] = {}

    def save(self, version: int) -> None:
        """Copy the current weights under their version, and drop those that are too old."""
        if self._depth and version not in self._kept:
            self._kept[version] = [p.detach().clone() for p in self._parameters]
            for old in [kept for kept in self._kept if kept < version - self._depth]:
                del self._kept[old]

    @contextmanager
    def restored(self, version: int) -> Iterator[None]:
        """Within the block, the parameters have the values of that version."""
        if not self._depth:
            yield
            return
        with with_data(self._parameters, self._kept[version]):
            yield

    @contextmanager
    def in_graphs(self, version: int) -> Iterator[None]:
        """Within the block, autograd keeps the copies of that version in place of the parameters.

        Otherwise it would refuse the backward pass of a graph whose parameters have changed.
        """
        if not self._depth:
            yield
            return
        copies = dict(zip(map(_address, self._parameters), self._kept[version], strict=True))

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            copy = copies.get(_address(tensor))
            if copy is None:
                return tensor
            # It may be a view, such as the transposed weight of a linear layer.
            return copy.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
            yield


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
