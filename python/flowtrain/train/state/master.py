"""Master weights: float32 copies of weights of another dtype, which the optimizer steps."""

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
    """Float32 copies of parameters, for mixed precision.

    A sum of small updates would be lost in the rounding of bfloat16, which has 8 significant bits.
    Gradients are accumulated and summed over the ranks in float32 as well.

    Args:
        parameters: Those that train; float32 ones, such as adapters, become masters themselves.
        dtype: Dtype of the passes. In float32 and float64 no parameter needs a copy.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter], dtype: torch.dtype) -> None:
        self._parameters = list(parameters) if dtype.itemsize < 4 else []
        self._copies = [p.detach().float() for p in self._parameters]
        for parameter in self._parameters:
            parameter.data = parameter.data.to(dtype)
            parameter.grad_dtype = torch.float32

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block, the parameters are their copies; then they are rounded from these.

        Optimizer and checkpoints know the parameters themselves, so that the state of the optimizer
        has float32 and the names of the parameters.
        """
        with with_data(self._parameters, self._copies):
            yield
        if self._parameters:
            torch._foreach_copy_([p.data for p in self._parameters], self._copies)
