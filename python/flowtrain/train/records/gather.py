"""Gather of rows from slabs into one packed tensor, and scatter of its gradient, with a cast.

Both are operators of torch, on CPUs and on CUDA devices, and work under `torch.compile`. On a
device, one kernel copies the rows of a microbatch, whatever the number and the sizes of its slabs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flowtrain_core import _ops, cuda

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
"""Dtypes of rows, and their names in the core."""


def gather_rows(
    memories: Sequence[torch.Tensor],
    pieces: torch.Tensor,
    *,
    rows: int,
    width: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Copy the rows of slabs into a new tensor.

    Args:
        memories: Flat contiguous tensors of one dtype and device, such as the segments that hold
            the slabs. A gradient is as large as its memory.
        pieces: int64 on the CPU, shape [pieces, 4]: number of the memory, offset of the first
            element in it, rows, and first row in the result. `pieces_of` makes it. In any order;
            the pieces must cover each row of the result once.
        rows: Rows of the result.
        width: Elements of a row.
        dtype: Dtype of the result; it and that of the memories are keys of DTYPES.

    Returns:
        Shape [rows, width]. Differentiable with respect to the memories, if no two pieces share an
        element.

    Raises:
        ValueError: A piece leaves its memory or the result, or the pieces do not cover the result.
    """
    return GATHER(list(memories), pieces, rows, width, dtype)


def scatter_rows(
    packed: torch.Tensor, pieces: torch.Tensor, memories: Sequence[torch.Tensor]
) -> None:
    """Copy the rows of a packed tensor back to the slabs: the reverse of `gather_rows`.

    Args:
        packed: Shape [rows, width].
        pieces: As for `gather_rows`; no two may share an element.
        memories: Written in place, and only where the pieces are.

    Raises:
        ValueError: As for `gather_rows`, or two pieces share an element.
    """
    SCATTER(packed, pieces, list(memories))


def pieces_of(
    memories: Sequence[int], offsets: Sequence[int], rows: Sequence[int], *, width: int, planes: int
) -> torch.Tensor:
    """Table of whole slabs, in the order of their rows.

    Args:
        memories: Number of the memory of each slab.
        offsets: Offset in elements of each slab in its memory.
        rows: Rows of each slab. A slab of several planes, such as those of deepstack, has shape
            [planes, rows, width].
        width: Elements of a row.
        planes: Planes of each slab. The gathered rows have shape [planes, sum(rows), width].

    Returns:
        int64, shape [planes * slabs, 4].
    """
    count = np.asarray(rows, np.int64)
    plane = np.arange(planes)[:, None]
    table = np.empty((planes, len(count), 4), np.int64)
    table[..., 0] = memories
    table[..., 1] = np.asarray(offsets, np.int64) + plane * count * width
    table[..., 2] = count
    table[..., 3] = np.cumsum(count) - count + plane * count.sum()
    return torch.from_numpy(table.reshape(-1, 4))


def _check(pieces: torch.Tensor, memories: Sequence[torch.Tensor], other: torch.dtype) -> None:
    """Check what the core cannot know of its arguments."""
    if not memories:
        raise ValueError("memories: there is none; pass the tensors that hold the slabs")
    if pieces.device.type != "cpu" or pieces.dtype != torch.int64:
        raise ValueError(f"pieces: {pieces.dtype} on {pieces.device}; must be int64 on the CPU")
    first = memories[0]
    for dtype in (first.dtype, other):
        if dtype not in DTYPES:
            raise ValueError(f"{dtype}: rows must be {', '.join(DTYPES.values())}")
    for i, memory in enumerate(memories):
        if memory.dtype != first.dtype or memory.device != first.device:
            raise ValueError(
                f"memory {i}: {memory.dtype} on {memory.device}, and memory 0 is {first.dtype} on "
                f"{first.device}; all must be alike"
            )
        if memory.dim() != 1 or not memory.is_contiguous():
            raise ValueError(f"memory {i}: shape {list(memory.shape)}; must be flat and contiguous")


def _ranges(memories: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    return [(memory.data_ptr(), memory.numel()) for memory in memories]


def _table(pieces: torch.Tensor) -> NDArray[np.int64]:
    return pieces.contiguous().numpy()


def _gather_cpu(
    memories: list[torch.Tensor], pieces: torch.Tensor, rows: int, width: int, dtype: torch.dtype
) -> torch.Tensor:
    _check(pieces, memories, dtype)
    ranges, size = _ranges(memories), memories[0].element_size()
    _ops.check_rows(_table(pieces), ranges, size, width=width, rows=rows, disjoint=False)
    out = memories[0].new_empty(rows, width, dtype=dtype)
    for memory, offset, count, first in pieces.tolist():
        slab = memories[memory][offset : offset + count * width]
        out[first : first + count] = slab.view(count, width)
    return out


def _scatter_cpu(packed: torch.Tensor, pieces: torch.Tensor, memories: list[torch.Tensor]) -> None:
    _check(pieces, memories, packed.dtype)
    rows, width = packed.shape
    ranges, size = _ranges(memories), memories[0].element_size()
    _ops.check_rows(_table(pieces), ranges, size, width=width, rows=rows, disjoint=True)
    for memory, offset, count, first in pieces.tolist():
        slab = memories[memory][offset : offset + count * width]
        slab.view(count, width).copy_(packed[first : first + count])
    _written(memories)


def _written(memories: Sequence[torch.Tensor]) -> None:
    """Let autograd see that the memories, which a graph may have saved, were changed."""
    torch.autograd.graph.increment_version(memories)


def _on_stream(device: torch.device) -> dict[str, int]:
    index = device.index
    return {"device": index, "stream": torch.cuda.current_stream(index).cuda_stream}


def _gather_cuda(
    memories: list[torch.Tensor], pieces: torch.Tensor, rows: int, width: int, dtype: torch.dtype
) -> torch.Tensor:
    _check(pieces, memories, dtype)
    first = memories[0]
    out = first.new_empty(rows, width, dtype=dtype)
    cuda.gather_rows(
        out.data_ptr(),
        DTYPES[dtype],
        _table(pieces),
        _ranges(memories),
        DTYPES[first.dtype],
        width=width,
        rows=rows,
        **_on_stream(first.device),
    )
    return out


def _scatter_cuda(packed: torch.Tensor, pieces: torch.Tensor, memories: list[torch.Tensor]) -> None:
    _check(pieces, memories, packed.dtype)
    first = memories[0]
    if packed.device != first.device:
        raise ValueError(f"packed: on {packed.device}, and the memories on {first.device}")
    packed = packed.contiguous()
    cuda.scatter_rows(
        packed.data_ptr(),
        DTYPES[packed.dtype],
        _table(pieces),
        _ranges(memories),
        DTYPES[first.dtype],
        width=packed.shape[1],
        rows=packed.shape[0],
        **_on_stream(first.device),
    )
    _written(memories)


def _gather_fake(
    memories: list[torch.Tensor], pieces: torch.Tensor, rows: int, width: int, dtype: torch.dtype
) -> torch.Tensor:
    return memories[0].new_empty(rows, width, dtype=dtype)


def _scatter_fake(packed: torch.Tensor, pieces: torch.Tensor, memories: list[torch.Tensor]) -> None:
    pass


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    memories, pieces, *_ = inputs
    ctx.save_for_backward(pieces)
    ctx.memories = [(memory.shape, memory.dtype) for memory in memories]


def _gather_backward(ctx: Any, of_packed: torch.Tensor) -> tuple[Any, ...]:
    (pieces,) = ctx.saved_tensors
    of_memories = [of_packed.new_zeros(shape, dtype=dtype) for shape, dtype in ctx.memories]
    SCATTER(of_packed, pieces, of_memories)
    return of_memories, None, None, None, None


_LIBRARY = torch.library.Library("flowtrain", "FRAGMENT")
_LIBRARY.define(
    "gather_rows(Tensor[] memories, Tensor pieces, SymInt rows, SymInt width, ScalarType dtype) "
    "-> Tensor"
)
_LIBRARY.define("scatter_rows(Tensor packed, Tensor pieces, Tensor(a!)[] memories) -> ()")
for _key, _gather, _scatter in (
    ("CPU", _gather_cpu, _scatter_cpu),
    ("CUDA", _gather_cuda, _scatter_cuda),
):
    _LIBRARY.impl("gather_rows", _gather, _key)
    _LIBRARY.impl("scatter_rows", _scatter, _key)
torch.library.register_fake("flowtrain::gather_rows", _gather_fake, lib=_LIBRARY)
torch.library.register_fake("flowtrain::scatter_rows", _scatter_fake, lib=_LIBRARY)
torch.library.register_autograd(
    "flowtrain::gather_rows", _gather_backward, setup_context=_save, lib=_LIBRARY
)
GATHER = torch.ops.flowtrain.gather_rows.default
"""The gather as an operator of torch."""
SCATTER = torch.ops.flowtrain.scatter_rows.default
"""The scatter as an operator of torch."""
