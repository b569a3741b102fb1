"""When the kernels of the core compute an operator: in float32, on one core of a CPU.

A rank on a CPU has one thread. Its operators are small, so that several calls of torch for one
operator of a model, each over all its values, take longer than the arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def usable(x: torch.Tensor) -> bool:
    """Whether the kernels compute an operator whose first argument is this."""
    return (
        not torch.compiler.is_compiling()
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and torch.get_num_threads() == 1
        and type(x) is torch.Tensor
    )


def array(x: torch.Tensor) -> NDArray[Any]:
    """The values of a tensor, in the same memory and shape."""
    # `x.numpy()` would forbid FSDP2 to free the storage of a gathered weight.
    values: NDArray[Any] = np.from_dlpack(x.detach())
    return values
