"""Arrays of a planner's input: their types, and checks that name the first bad value."""

from __future__ import annotations

from typing import Any

import numpy
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[numpy.float64]
IntArray = NDArray[numpy.int64]
BoolArray = NDArray[numpy.bool_]


def shaped(name: str, values: ArrayLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """Array of this shape; one number holds for all entries.

    Raises:
        ValueError: The shape differs.
    """
    array = numpy.asarray(values)
    if array.ndim and array.shape != shape:
        raise ValueError(f"{name}: shape must be {list(shape)}, not {list(array.shape)}")
    return numpy.broadcast_to(array, shape)


def seconds(name: str, values: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    """Times of this shape.

    Raises:
        ValueError: The shape differs, or a time is negative or not finite.
    """
    array = shaped(name, values, shape).astype(numpy.float64)
    bad = ~(numpy.isfinite(array) & (array >= 0))
    if bad.any():
        raise ValueError(f"{name}{_at(bad)}={array[bad][0]}: must be 0 or more, and finite")
    return array


def integers(
    name: str, values: ArrayLike, shape: tuple[int, ...], *, low: int = 0, high_bits: int
) -> IntArray:
    """Integers of this shape, from `low` to 2^high_bits.

    Raises:
        ValueError: The shape differs, or a value is no integer or out of its range.
    """
    array = shaped(name, values, shape)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name}: must be integers, not {array.dtype}")
    bad = (array < low) | (array > 1 << high_bits)
    if bad.any():
        raise ValueError(f"{name}{_at(bad)}={array[bad][0]}: must be from {low} to 2^{high_bits}")
    return array.astype(numpy.int64)


def _at(bad: BoolArray) -> str:
    """Index of the first bad value, such as "[1, 3]"."""
    return str(numpy.argwhere(bad)[0].tolist()) if bad.ndim else ""
