"""A stream of samples that can continue from any place."""

from __future__ import annotations

import copy
import zlib
from collections import deque
from typing import Any

import numpy
from numpy.typing import NDArray

from flowtrain.data.packed.sizes import Fields, Size, stack_sizes
from flowtrain.data.packed.source import Place, too_long_error
from flowtrain.packing import PackingError, Sizes

IntArray = NDArray[numpy.int64]

_STATES = ("dataset", "iterator")


class Stream:
    """Samples of a data set by position, kept until a step has used them.

    A place holds a state of the data set from before the oldest waiting sample, so that waiting
    samples can be read again. A data set without `state_dict` is read again from its start.

    Args:
        dataset: An iterable data set.
        fields: Sources of the sizes.
        max_tokens: Maximum tokens of a sample.
        drop: Whether longer samples are dropped; otherwise they are an error.
    """

    def __init__(self, dataset: Any, fields: Fields, *, max_tokens: int, drop: bool) -> None:
        self._dataset = dataset
        self._fields = fields
        self._max_tokens = max_tokens
        self._drop = drop
        self._iterator: Any = None
        self._kept: dict[int, tuple[Size, Any]] = {}
        self._dropped: list[int] = []
        self._marks: deque[Place] = deque()
        self._read = 0
        self._ended = False
        self.content = 0
        """Checksum of all values that were measured."""

    @staticmethod
    def start() -> Place:
        """The place before the first sample."""
        state = dict.fromkeys(_STATES)
        mark = {"marked": 0, "lengths": 0, **state}
        return {**mark, "read": 0, "ended": False, "waiting": []}

    def restore(self, place: Place, *, epoch: int) -> None:
        """Continue from a place.

        Raises:
            PackingError: The data set ends before the place, or has other samples before it.
        """
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(epoch)
        # A copy, as a data set may change the object that it loads.
        if place["dataset"] is not None:
            self._dataset.load_state_dict(copy.deepcopy(place["dataset"]))
        self._iterator = iter(self._dataset)
        if place["iterator"] is not None:
            self._iterator.load_state_dict(copy.deepcopy(place["iterator"]))
        mark = {name: place[name] for name in ("marked", *_STATES)} | {"lengths": 0}
        self._marks.append(mark)
        waiting = {row[0]: row[1] for row in place["waiting"]}
        for position in range(place["marked"], place["read"]):
            try:
                sample = next(self._iterator)
            except StopIteration:
                raise PackingError(
                    f"the stream ended after {position} samples, but {place['read']} had been read "
                    "when this state was saved; give the data set that it was saved with"
                ) from None
            size = self._fields.measure(position, sample)
            self._add_length(size.tokens)
            if position in waiting:
                if size.tokens != waiting[position]:
                    raise PackingError(
                        f"sample {position}: {size.tokens} tokens, but {waiting[position]} when "
                        "this state was saved: the stream has changed; give the data set that it "
                        "was saved with; if it has a state_dict, this must include all samples "
                        "that it has read (most omit a shuffle buffer)"
                    )
                self._kept[position] = size, sample
        if mark["lengths"] != place["lengths"]:
            raise PackingError(
                f"samples {place['marked']} to {place['read'] - 1}: their lengths have checksum "
                f"{mark['lengths']}, but {place['lengths']} when this state was saved: the stream "
                "has changed, and samples would be repeated or omitted; give the data set that it "
                "was saved with; if it draws its order, give it a fixed seed or a state_dict"
            )
        self._read, self._ended = place["read"], place["ended"]
        if self._ended:
            # Some iterators reset themselves for the next epoch at this call.
            next(self._iterator, None)

    def place(self, waiting: list[list[Any]]) -> Place:
        """The place of the stream, with rows (position, tokens, ...) of the waiting samples."""
        states = self._states()
        # At the end of the stream, the state may be that of the next epoch.
        if not self._ended and any(state is not None for state in states.values()):
            self._marks.append({"marked": self._read, "lengths": 0, **states})
        oldest = min((row[0] for row in waiting), default=self._read)
        while len(self._marks) > 1 and self._marks[1]["marked"] <= oldest:
            self._marks.popleft()
        return {**self._marks[0], "read": self._read, "ended": self._ended, "waiting": waiting}

    def take(self, count: int) -> tuple[IntArray, Sizes]:
        """Positions and sizes of the next samples that are within `max_tokens`.

        Raises:
            PackingError: A size cannot be read, or a sample is above `max_tokens`.
        """
        taken: list[int] = []
        while len(taken) < count and not self._ended:
            try:
                sample = next(self._iterator)
            except StopIteration:
                self._ended = True
                break
            position = self._read
            self._read += 1
            size = self._fields.measure(position, sample)
            self._add_length(size.tokens)
            self.content = zlib.crc32(size.content.to_bytes(4, "little"), self.content)
            if size.tokens <= self._max_tokens:
                self._kept[position] = size, sample
                taken.append(position)
            elif self._drop:
                self._dropped.append(position)
            else:
                raise too_long_error(position, size.tokens, self._max_tokens)
        positions = numpy.array(taken, numpy.int64)
        return positions, self.sizes(positions)

    def sizes(self, positions: IntArray) -> Sizes:
        """Sizes of kept samples."""
        return stack_sizes([self._kept[position][0] for position in positions.tolist()])

    def sample(self, position: int) -> Any:
        """A kept sample."""
        return self._kept[position][1]

    def discard(self, positions: list[int]) -> None:
        """Forget kept samples."""
        for position in positions:
            del self._kept[position]

    def take_dropped(self) -> list[int]:
        """Positions of samples above `max_tokens` that were dropped since the last call."""
        taken, self._dropped = self._dropped, []
        return taken

    def _add_length(self, tokens: int) -> None:
        for mark in self._marks:
            mark["lengths"] = zlib.crc32(tokens.to_bytes(8, "little"), mark["lengths"])

    def _states(self) -> dict[str, Any]:
        """States of the iterator and of the data set, if these are two objects."""
        states: dict[str, Any] = dict.fromkeys(_STATES)
        if hasattr(self._iterator, "state_dict"):
            states["iterator"] = copy.deepcopy(self._iterator.state_dict())
        if self._iterator is not self._dataset and hasattr(self._dataset, "state_dict"):
            states["dataset"] = copy.deepcopy(self._dataset.state_dict())
        return states
