"""Data sets of Python code, named by an import path."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from flowtrain.config.checks import ConfigError
from flowtrain.data.errors import DataError, shortened
from flowtrain.data.records.base import Records, State
from flowtrain.error_texts import reason_of


class ImportedDataset(Records):
    """Records of the map-style data set that a function returns.

    The function is called once in each process that reads.

    Args:
        spec: `package.module:make`, where `make` takes no arguments. It returns an object with
            `__len__` and `__getitem__`; an item is a dictionary as on a line of a JSONL file, or
            what the model's processor returns for a sample, with its labels.
        state: State that the data set must have; None takes its state now.

    Raises:
        ConfigError: There is no such function.
        DataError: The function raises an error or returns no data set, or the data set is empty
            or has another length.
    """

    unit = "item"

    def __init__(self, spec: str, state: State | None = None) -> None:
        self._samples = _made(spec)
        self._length = _length(self._samples, spec)
        if state is not None and state != self._state_now():
            raise DataError(
                f"data.dataset={spec}: it has {self._state_now()}, and had {state} when the run "
                "started; the function must return the same data set in every process"
            )
        super().__init__(f"data.dataset={spec}", state)

    def __len__(self) -> int:
        return self._length

    def _read(self, sample: int) -> Any:
        try:
            record = self._samples[sample]
        except (Exception, SystemExit) as error:
            raise DataError(
                f"{self.where(sample)}: __getitem__({sample}) raised {type(error).__name__}: "
                f"{error}; correct the data set"
            ) from error
        # Processors of transformers return a mapping of their own.
        return dict(record) if isinstance(record, Mapping) else record

    def _not_a_record(self, sample: int, record: Any) -> str:
        return (
            f"{self.where(sample)}: __getitem__({sample}) returned {short(record)}; it must be a "
            'dict, such as {"messages": [...], "images": [...]}'
        )

    def _state_now(self) -> State:
        return f"{self._length} samples"

    def contents(self, *, every: int = 1) -> str:
        # Code can read anything, so that no more than this can be known.
        return self._state_now()


def make_dataset(spec: str) -> Any:
    """The data set that a function returns: map-style, or iterable.

    Raises:
        ConfigError: There is no such function.
        DataError: The function raises an error, or returns no data set.
    """
    made = _function(spec)
    try:
        samples = made()
    except (Exception, SystemExit) as error:
        raise DataError(
            f"data.dataset={spec}: the function raised {reason_of(error)}; it is "
            "called without arguments, and must return a data set"
        ) from error
    if not (_is_map_style(samples) or hasattr(type(samples), "__iter__")):
        raise DataError(
            f"data.dataset={spec}: the function returned {short(samples)}, which has neither "
            "__len__ and __getitem__ nor __iter__; return a map-style data set, such as a list or "
            "torch's Dataset, or an iterable one"
        )
    return samples


def is_iterable_only(spec: str) -> bool:
    """Whether a function returns a data set that can only be iterated over.

    Raises:
        ConfigError, DataError: As `make_dataset`.
    """
    return not _is_map_style(_made(spec))


# A process that opens a data set several times makes it once.
_made = functools.cache(make_dataset)


def _is_map_style(samples: Any) -> bool:
    # torch's IterableDataset inherits a __getitem__ that only raises an error.
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and isinstance(samples, torch_data.IterableDataset):
        return False
    return hasattr(type(samples), "__len__") and hasattr(type(samples), "__getitem__")


def _length(samples: Any, spec: str) -> int:
    try:
        length = len(samples)
    except (Exception, SystemExit) as error:
        raise DataError(
            f"data.dataset={spec}: __len__ raised {reason_of(error)}; it must return "
            "the number of samples"
        ) from error
    if length == 0:
        raise DataError(f"data.dataset={spec}: no samples; return at least one")
    return length


def _function(spec: str) -> Callable[[], Any]:
    module, _, name = spec.partition(":")
    try:
        function: Callable[[], Any] = getattr(importlib.import_module(module), name)
    # A module may raise anything when it is imported.
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"data.dataset={spec}: {reason_of(error)}; write package.module:make, "
            "where Python can import the module (install it, or add its folder to PYTHONPATH)"
        ) from error
    if not callable(function):
        raise ConfigError(
            f"data.dataset={spec}: {name} is {short(function)}; name a function that returns the "
            "data set"
        )
    return function


def short(value: Any) -> str:
    """Type and value of an object, shortened."""
    return f"a {type(value).__name__}, {shortened(value)}"
