"""Sizes of samples, from a column, a function of a sample, or one value per sample."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import numpy
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from flowtrain.data.packed.workers import wrapped_init
from flowtrain.packing import PackingError, Sizes
from flowtrain.packing.sizes import INT_LIMIT

Field = str | Callable[[Any], Any]
Values = Sequence[float] | NDArray[Any] | torch.Tensor
FieldOrValues = Field | Values

_IGNORED = -100
_BATCH = 256


class Size(NamedTuple):
    """Tokens, cost and target tokens of one sample, and a checksum of the values read for them."""

    tokens: int
    cost: float
    targets: int | None
    content: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Fields:
    """Sources of the sizes of a sample.

    Attributes:
        length: Its tokens: a number, or a row with one element per token, such as `input_ids`.
        cost: A number; None takes the tokens.
        targets: Its target tokens: a number, or labels. Labels from the second on that are not -100
            count, as causal language models shift them. None if targets are not needed.
    """

    length: FieldOrValues
    cost: FieldOrValues | None = None
    targets: FieldOrValues | None = None

    def named(self) -> dict[str, FieldOrValues]:
        """The sources that are set, by name."""
        fields = {"length": self.length, "cost": self.cost, "targets": self.targets}
        return {name: field for name, field in fields.items() if field is not None}

    def measure(self, key: int, sample: Any) -> Size:
        """Size of a sample that was read.

        Raises:
            PackingError: A field is missing or is no size. The message names sample and field.
        """
        found, content = {}, 0
        for name, field in self.named().items():
            if not _is_field(field):
                raise PackingError(
                    f"{name}: a list with one value per sample needs a map-style data set; for a "
                    "stream, give the name of a column or a function of a sample"
                )
            array = _array(name, field, key, sample)
            found[name] = _value(name, key, array)
            content = zlib.crc32(array.tobytes(), content)
        return Size(
            tokens=int(found["length"]),
            cost=found.get("cost", found["length"]),
            targets=int(found["targets"]) if "targets" in found else None,
            content=content,
        )


def sizes_of(dataset: Any, fields: Fields, **workers: Any) -> Sizes:
    """Sizes of all samples. Sizes that are not given are read in one pass over the data set.

    If the data set can select columns (Hugging Face) and has no transform, the pass reads only the
    columns that it needs.

    Args:
        dataset: A map-style data set.
        fields: Sources of the sizes.
        workers: Options of the `DataLoader` that reads.

    Raises:
        PackingError: A field is missing or is no size. The message names sample and field.
    """
    count = len(dataset)
    columns = {}
    to_read: dict[str, Field] = {}
    for name, field in fields.named().items():
        if _is_field(field):
            to_read[name] = field
        else:
            columns[name] = _from_values(name, field, count)
    if to_read:
        names = [field for field in to_read.values() if isinstance(field, str)]
        if len(names) == len(to_read) and _has_columns(dataset):
            dataset = dataset.select_columns(sorted(set(names)))
        rows_read = DataLoader(
            _Measured(dataset, to_read),
            batch_size=_BATCH,
            collate_fn=list,
            generator=torch.Generator(),
            **workers | {"worker_init_fn": wrapped_init(workers.get("worker_init_fn"))},
        )
        rows = numpy.array([row for rows in rows_read for row in rows], numpy.float64)
        columns |= zip(to_read, rows.reshape(count, len(to_read)).T, strict=True)
    return Sizes(
        tokens=columns["length"].astype(numpy.int64),
        cost=numpy.ascontiguousarray(columns.get("cost", columns["length"]), numpy.float64),
        targets=columns["targets"].astype(numpy.int64) if "targets" in columns else None,
    )


def stack_sizes(sizes: Sequence[Size]) -> Sizes:
    """Sizes of single samples as arrays."""
    targets = [size.targets for size in sizes if size.targets is not None]
    return Sizes(
        tokens=numpy.array([size.tokens for size in sizes], numpy.int64),
        cost=numpy.array([size.cost for size in sizes], numpy.float64),
        targets=numpy.array(targets, numpy.int64) if targets else None,
    )


class _Measured(Dataset[list[float]]):
    """A data set that yields the sizes of the samples of another one."""

    def __init__(self, dataset: Any, fields: Mapping[str, Field]) -> None:
        self.dataset = dataset
        self._fields = fields

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> list[float]:
        return self._row(index, self.dataset[index])

    def __getitems__(self, indices: Sequence[int]) -> list[list[float]]:
        if hasattr(self.dataset, "__getitems__"):
            samples = self.dataset.__getitems__(indices)
        else:
            samples = [self.dataset[index] for index in indices]
        return [self._row(*each) for each in zip(indices, samples, strict=True)]

    def _row(self, index: int, sample: Any) -> list[float]:
        return [
            _value(name, index, _array(name, field, index, sample))
            for name, field in self._fields.items()
        ]


def _has_columns(dataset: Any) -> bool:
    """Whether columns can be selected; a transform needs whole samples."""
    shown = getattr(dataset, "format", None)
    transformed = isinstance(shown, Mapping) and shown.get("type") == "custom"
    return hasattr(dataset, "select_columns") and not transformed


def _is_field(field: FieldOrValues) -> TypeGuard[Field]:
    return isinstance(field, str) or callable(field)


def _from_values(name: str, values: Any, count: int) -> NDArray[Any]:
    array = numpy.asarray(values)
    if array.shape != (count,) or array.dtype.kind not in "iuf":
        raise PackingError(
            f"{name}: {array.dtype} of shape {array.shape}, but the data set has {count} samples; "
            "give one number per sample"
        )
    for index, value in enumerate(array.tolist()):
        _checked(name, index, value)
    return array


def _array(name: str, field: Any, key: int, sample: Any) -> NDArray[Any]:
    if callable(field):
        value = field(sample)
    else:
        try:
            value = sample[field]
        except (KeyError, IndexError, TypeError) as error:
            raise PackingError(
                f"sample {key}: it has no '{field}'; give {name}= as another column, as a function "
                "of a sample, or as one value per sample"
            ) from error
    try:
        return numpy.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise PackingError(
            f"sample {key}: {name} is {type(value).__name__}; it must be a number or a row of "
            f"tokens ({error})"
        ) from error


def _value(name: str, key: int, array: NDArray[Any]) -> float:
    if array.ndim == 0 and array.dtype.kind in "iuf":
        return _checked(name, key, array.item())
    row = array.ndim > 0 and array.size == array.shape[-1] and not array.dtype.hasobject
    if name == "cost" or not row:
        raise PackingError(
            f"sample {key}: {name} is {array.dtype} of shape {array.shape}; it must be a number"
            + ("" if name == "cost" else ", or one row of tokens")
        )
    if name == "targets":
        return float((array.reshape(-1)[1:] != _IGNORED).sum())
    return float(array.size)


def _checked(name: str, key: int, value: float) -> float:
    whole = name != "cost"
    if not 0 <= value < math.inf or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise PackingError(f"sample {key}: {name}={value}; it must be {kind} of at least 0")
    if whole and value >= INT_LIMIT:
        raise PackingError(f"sample {key}: {name}={value}; it must be below 2^62")
    return float(value)
