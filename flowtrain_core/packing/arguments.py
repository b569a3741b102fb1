"""Checks of the arguments of a schedule: each error names the argument, its value and the limit."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, SupportsIndex

import numpy
from numpy.typing import ArrayLike, NDArray

from flowtrain_core.packing.problem import IntArray


def check_choice(value: str, name: str, choices: Iterable[str]) -> None:
    """Refuse a value that is none of the choices."""
    if value not in tuple(choices):
        raise ValueError(f"{name} {value!r}: choose from {', '.join(choices)}")


def integer(value: SupportsIndex, name: str, *, minimum: int = 1, bits: int = 31) -> int:
    """An integer of at least `minimum`, below 2^bits."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"{name}={value!r}: must be an integer") from None
    if not minimum <= number < 1 << bits:
        raise ValueError(f"{name}={number}: must be at least {minimum} and below 2^{bits}")
    return number


def integers(values: ArrayLike, name: str) -> IntArray:
    """One integer per sample, int64 of shape [num_samples]."""
    array = numpy.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{name}: shape must be [num_samples], not {array.shape}")
    if array.dtype == numpy.int64:
        return numpy.ascontiguousarray(array)
    with numpy.errstate(invalid="ignore"):  # Values that are no integers are refused below.
        whole = array.astype(numpy.int64) if array.dtype.kind in "iuf" else None
    if whole is None or not (whole == array).all():
        raise ValueError(f"{name}: values must be integers, not of dtype {array.dtype}")
    return whole


def costs(values: ArrayLike, name: str) -> NDArray[Any]:
    """One cost per sample, int64 or float64 of shape [num_samples]."""
    array = numpy.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise ValueError(
            f"{name}: must be numbers of shape [num_samples], not {array.dtype} of {array.shape}"
        )
    if array.dtype == numpy.uint64 and (array >= 1 << 63).any():
        raise ValueError(f"{name}={array.max()}: must be below 2^63")
    return numpy.ascontiguousarray(
        array, dtype=numpy.float64 if array.dtype.kind == "f" else numpy.int64
    )


def check_length(name: str, values: NDArray[Any], tokens: IntArray) -> None:
    """Refuse values that are not one per sample."""
    if len(values) != len(tokens):
        raise ValueError(
            f"{name} has {len(values)} samples and tokens {len(tokens)}; give one value per sample"
        )
