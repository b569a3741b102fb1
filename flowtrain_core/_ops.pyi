"""Operators of models, and their gradients.

On one core of a CPU they are in float32, and results are written to arrays of the caller, of which
none is converted. Wrong input is a ValueError that names the argument and its shape, or a TypeError
for an argument of another dtype or one that must be contiguous and is not.

`cuda_` operators are launches of kernels, in a build with CUDA; `flowtrain_core.cuda` has them.
"""

from collections.abc import Sequence

from numpy import float32, int64
from numpy.typing import NDArray

def check_rows(
    pieces: NDArray[int64],
    memories: Sequence[tuple[int, int]],
    element_bytes: int,
    *,
    width: int,
    rows: int,
    disjoint: bool,
) -> None:
    """Check the table of a gather as cuda_gather_rows does, or of a scatter if `disjoint`."""

def attention(
    q: NDArray[float32],
    k: NDArray[float32],
    v: NDArray[float32],
    lengths: NDArray[int64],
    scale: float,
    causal: bool,
    out: NDArray[float32],
    log_sums: NDArray[float32],
) -> None:
    """Attention of each of several documents to itself.

    `q` and `out` have shape [heads, tokens, head_dim], `k` and `v` [kv_heads, tokens,
    head_dim], with a contiguous last dimension; `lengths` are the tokens of each document.
    `log_sums`, of shape [heads, tokens], is filled with the logarithm of the sum of the
    exponentials of each token's scores.
    """

def attention_backward(
    q: NDArray[float32],
    k: NDArray[float32],
    v: NDArray[float32],
    lengths: NDArray[int64],
    scale: float,
    causal: bool,
    out: NDArray[float32],
    log_sums: NDArray[float32],
    of_out: NDArray[float32],
    of_q: NDArray[float32],
    of_k: NDArray[float32],
    of_v: NDArray[float32],
) -> None:
    """Fill the gradients of `q`, `k` and `v`, from what `attention` has filled."""

def rms_norm(
    x: NDArray[float32],
    weight: NDArray[float32],
    eps: float,
    scales: NDArray[float32],
    out: NDArray[float32],
) -> None:
    """Fill `scales`, 1 / sqrt(mean(x^2) + eps), shape [rows], and `out`, x * scale * weight.

    `x` and `out` have shape [rows, width], `weight` [width].
    """

def rms_norm_backward(
    x: NDArray[float32],
    weight: NDArray[float32],
    scales: NDArray[float32],
    of_out: NDArray[float32],
    of_x: NDArray[float32] | None,
    of_weight: NDArray[float32] | None,
) -> None:
    """Fill the gradients of `x` and `weight`, unless None, from what `rms_norm` has filled."""

def rotate(
    x: NDArray[float32],
    cos: NDArray[float32],
    sin: NDArray[float32],
    out: NDArray[float32],
    back: bool,
) -> None:
    """Rotary positions: fill `out` with (a cos - b sin, b cos + a sin) of the halves of `x`.

    `x` and `out` have shape [heads, tokens, head_dim] and a contiguous last dimension, `cos`
    and `sin` [tokens, head_dim]. `back` rotates by the opposite angles, which is the gradient.
    """

def swiglu(gate: NDArray[float32], up: NDArray[float32], out: NDArray[float32]) -> None:
    """Fill `out` with silu(gate) * up; all have one shape."""

def swiglu_backward(
    gate: NDArray[float32],
    up: NDArray[float32],
    of_out: NDArray[float32],
    of_gate: NDArray[float32],
    of_up: NDArray[float32],
) -> None:
    """Fill the gradients of `gate` and `up`; all have one shape."""

def cuda_gather_rows(
    packed: int,
    packed_dtype: str,
    pieces: NDArray[int64],
    memories: Sequence[tuple[int, int]],
    slab_dtype: str,
    *,
    width: int,
    rows: int,
    device: int,
    stream: int,
) -> None:
    """Enqueues a gather of rows from slabs into a packed buffer, with a cast.

    One kernel copies all slabs, up to 2,720; more take several. The table travels with the launch
    and may be changed or freed at once; keep the memories and the buffer alive until the kernel is
    done.

    Args:
        packed: Address of the buffer, shape [rows, width], contiguous.
        packed_dtype: float32, bfloat16 or float16.
        pieces: Shape [pieces, 4]: number of the memory, offset of the first element in it, rows,
            and first row in the buffer. In any order; they cover each row of the buffer once.
        memories: Address and number of elements of each memory.
        slab_dtype: Dtype of the memories.
        width: Elements of a row.
        rows: Rows of the buffer.
        device: Number of the device.
        stream: Stream that runs the kernel.

    Raises:
        ValueError: A piece leaves its memory or the buffer, or the pieces do not cover the buffer.
        CudaError: The launch failed.
    """

def cuda_scatter_rows(
    packed: int,
    packed_dtype: str,
    pieces: NDArray[int64],
    memories: Sequence[tuple[int, int]],
    slab_dtype: str,
    *,
    width: int,
    rows: int,
    device: int,
    stream: int,
) -> None:
    """The reverse of cuda_gather_rows, from the packed buffer to the slabs.

    Raises:
        ValueError: As for cuda_gather_rows, or two pieces share an element.
        CudaError: The launch failed.
    """

def cuda_rotate(
    queries: tuple[int, int, int, int, int, int, int],
    keys: tuple[int, int, int, int, int, int, int],
    dtype: str,
    cos: int,
    sin: int,
    angle_dtype: str,
    *,
    tokens: int,
    head_dim: int,
    back: bool,
    device: int,
    stream: int,
) -> None:
    """Enqueues a rotation of queries and keys by the angles of their tokens, computed in float32.

    With halves a and b of a head, the result is (a cos - b sin, b cos + a sin).

    Args:
        queries: Address and distances in elements of tokens and of heads, of the source and then of
            the result; and the number of heads. The elements of a head are contiguous.
        keys: The same of the keys.
        dtype: float32, bfloat16 or float16; of queries and keys.
        cos: Address of the cosines, shape [tokens, head_dim], contiguous.
        sin: Address of the sines, in the same shape.
        angle_dtype: Dtype of cosines and sines.
        tokens: Number of tokens.
        head_dim: Elements of a head, even.
        back: Rotate by the opposite angles.
        device: Device of all addresses.
        stream: The stream, as an integer.

    Raises:
        ValueError: An address is not aligned to its dtype, or an argument is not as above.
        CudaError: The launch failed.
    """
