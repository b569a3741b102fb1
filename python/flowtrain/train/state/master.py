"""Master weights: float32 copies of weights of another dtype, which the optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch


class MasterWeights:
    """Float32 copies of parameters, for mixed precision.

    A sum of small updates would be lost in the rounding of bfloat16, which has 8 significant bits.
    Gradients are accumulated and summed over the ranks in float32 as well.

    Args:
        parameters: Those that train. Parameters of float32 and float64 need no copy.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = [p for p in parameters if p.dtype.itemsize < 4]
        self._copies = [p.detach().float() for p in self._parameters]
        for parameter in self._parameters:
            parameter.grad_dtype = torch.float32

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block, the parameters are their copies; then they are rounded from these.

        Optimizer and checkpoints know the parameters themselves, so that the state of the optimizer
        has float32 and the names of the parameters.
        """
        rounded = [parameter.data for parameter in self._parameters]
        for parameter, copy in zip(self._parameters, self._copies, strict=True):
            parameter.data = copy
        try:
            yield
        finally:
            for parameter, data in zip(self._parameters, rounded, strict=True):
                parameter.data = data
            if rounded:
                torch._foreach_copy_(rounded, self._copies)
