"""Master weights: the stored weights behind those of the passes, which have another dtype."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch


@contextmanager
def with_data(
    parameters: Sequence[torch.nn.Parameter], data: Sequence[torch.Tensor]
) -> Iterator[None]:
    """Within the block, the parameters have other values, which may have another dtype."""
    own = [parameter.data for parameter in parameters]
    for parameter, other in zip(parameters, data, strict=True):
        parameter.data = other
    try:
        yield
    finally:
        for parameter, value in zip(parameters, own, strict=True):
            parameter.data = value


class MasterWeights:
    """Parameters as they are stored, for mixed precision; the passes have rounded copies.

    A sum of small updates would be lost in the rounding of bfloat16, which has 8 significant bits.
    Gradients are accumulated in the stored dtype as well.

    Args:
        parameters: Those that train, in the dtype in which they are stored.
        dtype: Dtype of the passes. A parameter that has it already needs no second copy.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], dtype: torch.dtype) -> None:
        self._parameters = [p for p in parameters if p.dtype != dtype]
        self._stored = [p.detach() for p in self._parameters]
        for parameter, stored in zip(self._parameters, self._stored, strict=True):
            parameter.data = stored.to(dtype)
            parameter.grad_dtype = stored.dtype

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block, the parameters are the stored ones; then they are rounded from these.

        Optimizer and checkpoints know the parameters themselves, so that the state of the optimizer
        has the stored dtype and the names of the parameters.
        """
        with with_data(self._parameters, self._stored):
            yield
        if self._parameters:
            torch._foreach_copy_([p.data for p in self._parameters], self._stored)
