"""Data sets of Python code that can only be iterated over, read as a stream of records."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from flowtrain.data.errors import DataError
from flowtrain.data.files import as_json
from flowtrain.data.records.base import Records, State
from flowtrain.data.records.imported import make_dataset, short
from flowtrain.error_texts import reason_of

STREAM: State = "a stream"
"""State of every stream: unlike a file, it cannot be compared before it is read."""

_NO_LENGTH = 1 << 62


def is_stream(state: State) -> bool:
    """Whether the state of the data sets of a run is that of a stream."""
    return STREAM in json.loads(state)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A place in a stream between two records, from which the stream can be read again."""

    records: int = 0
    """Records before the place, over all epochs."""
    epoch: int = 0
    first: int = 0
    """Records before the epoch."""
    longest: int = 0
    """Records of the longest epoch before this one."""
    state: dict[str, Any] | None = None
    """What `state_dict` returned, as JSON; None at the start of an epoch."""

    @property
    def epoch_start(self) -> Place:
        """The place at the start of the epoch."""
        return Place(records=self.first, epoch=self.epoch, first=self.first, longest=self.longest)


class Stream:
    """Iterates over the records of a data set, epoch after epoch, without an end.

    A record is returned as a line of a JSONL file. After an error, every call raises it again.

    Args:
        spec: `package.module:make`, where `make` returns an object with `__iter__`. If the object
            has `set_epoch`, this is called before each epoch, from 0. If it has `state_dict` and
            `load_state_dict`, they are used to continue within an epoch.
        place: Where to begin.

    Raises:
        ConfigError, DataError: As `make_dataset`.
    """

    def __init__(self, spec: str, place: Place | None = None) -> None:
        self.name = f"data.dataset={spec}"
        self._samples = make_dataset(spec)
        place = place or Place()
        self.records = place.records
        """Records before the next one."""
        self.longest = place.longest
        """Records of the longest epoch that has ended."""
        self._first, self._epoch = place.first, place.epoch
        self._state = place.state
        self._iterator: Iterator[Any] | None = None
        self._error: DataError | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """The next record as a line, with its line break.

        Raises:
            DataError: The data set raises an error, an epoch has no records, or the record is not
                a dictionary of values that JSON can hold.
        """
        if self._error is not None:
            raise self._error
        try:
            line = json_line(self._record(), self._where())
        except DataError as error:
            self._error = error
            raise
        self.records += 1
        return line

    def place(self) -> Place:
        """The latest place that can be returned to: here, or the start of the epoch.

        Raises:
            DataError: `state_dict` raises an error, or returns what cannot be stored.
        """
        place = Place(
            records=self.records,
            epoch=self._epoch,
            first=self._first,
            longest=self.longest,
            state=self._state_now() if self.records > self._first else None,
        )
        return place if place.state is not None else place.epoch_start

    def _record(self) -> Any:
        while True:
            with self._errors():
                if self._iterator is None:
                    self._iterator = self._begin()
                try:
                    return next(self._iterator)
                except StopIteration:
                    self._end_epoch()

    def _begin(self) -> Iterator[Any]:
        """Begin the epoch, or continue in it."""
        if hasattr(self._samples, "set_epoch"):
            self._samples.set_epoch(self._epoch)
        if self._state is not None:
            self._samples.load_state_dict(_unpacked(self._state))
            self._state = None
        return iter(self._samples)

    def _end_epoch(self) -> None:
        size = self.records - self._first
        if size == 0 and self._epoch == 0:
            raise DataError(f"{self.name}: no records; return at least one")
        if size == 0:
            raise DataError(
                f"{self.name}: epoch {self._epoch - 1} ended after record {self.records - 1}, and "
                f"epoch {self._epoch} has no records; return an object whose __iter__ starts again "
                "(a generator cannot), or lower train.steps"
            )
        self.longest = max(self.longest, size)
        self._epoch += 1
        self._first = self.records
        self._iterator = None

    def _state_now(self) -> dict[str, Any] | None:
        if not (hasattr(self._samples, "state_dict") and hasattr(self._samples, "load_state_dict")):
            return None
        with self._errors():
            state = self._samples.state_dict()
            return None if state is None else _packed(state, self.name)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of the data set within the block into a DataError that names it."""
        try:
            yield
        except DataError:
            raise
        except (Exception, SystemExit) as error:
            raise DataError(
                f"{self._where()}: the data set raised {reason_of(error)}; correct "
                "the cause and continue with --resume"
            ) from error

    def _where(self) -> str:
        return f"{self.name}: item {self.records}"


class StreamRecords(Records):
    """Records of a stream by number, counted over all epochs. It has no known length.

    Args:
        spec: Import path of the data set.
    """

    unit = "item"

    def __init__(self, spec: str) -> None:
        super().__init__(f"data.dataset={spec}", STREAM)

    def __len__(self) -> int:
        return _NO_LENGTH

    def _state_now(self) -> State:
        return STREAM

    def contents(self, *, every: int = 1) -> str:
        return STREAM


class DirectStream(StreamRecords):
    """Records that are read from the data set itself, as far as the wanted ones.

    For what needs a few records before a run. The last record is kept; for an earlier one the
    stream is read again from its start.
    """

    def __init__(self, spec: str) -> None:
        super().__init__(spec)
        self._spec = spec
        self._stream: Stream | None = None
        self._last = b""

    def _read(self, sample: int) -> Any:
        if self._stream is None or sample < self._stream.records - 1:
            self._stream = Stream(self._spec)
        while self._stream.records <= sample:
            self._last = next(self._stream)
        return json.loads(self._last)


def json_line(record: Any, where: str) -> bytes:
    """A record as a line of a JSONL file, with its line break.

    Args:
        record: The record.
        where: Its place, for messages.

    Raises:
        DataError: It is not a dictionary of values that JSON can hold.
    """
    if not isinstance(record, dict):
        raise DataError(
            f"{where} is {short(record)}; it must be a dict, such as "
            '{"messages": [...], "images": [...]}'
        )
    try:
        return json.dumps(record, default=as_json).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(
            f"{where}: {error}; a record consists of texts, numbers, lists, dictionaries, paths, "
            "bytes and images of Pillow; tensors, such as a processor returns, are read from a "
            "map-style data set, which data.dataset names"
        ) from error


def _packed(state: Any, name: str) -> dict[str, Any]:
    """A state as JSON: itself if possible, and otherwise as a file of torch."""
    try:
        if json.loads(json.dumps(state)) == state:
            return {"json": state}
    except (TypeError, ValueError, RuntimeError):
        pass  # It has other values, such as tensors.
    import torch

    file = io.BytesIO()
    try:
        torch.save(state, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception as error:
        raise DataError(
            f"{name}: state_dict returned {short(state)}, which cannot be stored "
            f"({type(error).__name__}: {str(error).splitlines()[0]}); return numbers, texts, "
            "bytes, tensors, and lists, tuples and dictionaries of them"
        ) from error
    return {"torch": base64.b64encode(file.getvalue()).decode()}


def _unpacked(packed: dict[str, Any]) -> Any:
    if "json" in packed:
        return packed["json"]
    import torch

    return torch.load(io.BytesIO(base64.b64decode(packed["torch"])), weights_only=True)
