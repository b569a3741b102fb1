"""A stream of samples that can be read again from a place in it."""

from __future__ import annotations

import copy
import zlib
from collections import deque
from typing import Any

import numpy
from numpy.typing import NDArray

from flowtrain.data.packed.sizes import Fields, Size, gathered
from flowtrain.data.packed.source import Place, too_long
from flowtrain.packing import PackingError, Sizes

IntArray = NDArray[numpy.int64]

_STATES = ("dataset", "iterator")


class Stream:
    """Samples of a data set by position, kept until they are placed.

    A place names a state of the data set from before the oldest sample that waits, so that what
    waits can be read again. A data set without `state_dict` is read again from its start.

    Args:
        dataset: An iterable data set.
        fields: Where sizes come from.
        token_cap: Most tokens of a sample.
        leave_out: Whether longer ones are left out; else they are an error.
    """

    def __init__(self, dataset: Any, fields: Fields, *, token_cap: int, leave_out: bool) -> None:
        self._dataset = dataset
        self._fields = fields
        self._token_cap = token_cap
        self._leave_out = leave_out
        self._iterator: Any = None
        self._kept: dict[int, tuple[Size, Any]] = {}
        self._left_out: list[int] = []
        self._marks: deque[Place] = deque()
        self._read = 0
        self._ended = False
        self.content = 0
        """Checksum of what was measured since this was made."""

    @staticmethod
    def start() -> Place:
        """The place before the first sample."""
        state = dict.fromkeys(_STATES)
        mark = {"marked": 0, "lengths": 0, **state}
        return {**mark, "read": 0, "ended": False, "waiting": []}

    def restore(self, place: Place, *, epoch: int) -> None:
        """Go on from a place.

        Raises:
            PackingError: The data set ends before it, or reads other samples up to it.
        """
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(epoch)
        # A data set may go on counting in the object that it is given; the place must not change.
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
                    f"the stream ended after {position} samples, and {place['read']} had been read "
                    "when this state was saved; give the data set that it was saved with"
                ) from None
            size = self._fields.measure(position, sample)
            self._add_length(size.tokens)
            if position in waiting:
                if size.tokens != waiting[position]:
                    raise PackingError(
                        f"sample {position}: {size.tokens} tokens, and {waiting[position]} when "
                        "this state was saved: read again, the stream is another one; give the "
                        "data set that it was saved with, and one whose state holds all that it "
                        "has read (a shuffle buffer is mostly left out)"
                    )
                self._kept[position] = size, sample
        if mark["lengths"] != place["lengths"]:
            raise PackingError(
                f"samples {place['marked']} to {place['read'] - 1}: their lengths have checksum "
                f"{mark['lengths']}, and {place['lengths']} when this state was saved: read again, "
                "the stream is another one, and samples would be repeated or left out; give the "
                "data set that it was saved with, and one that draws the same order again (with a "
                "seed of its own, or a state_dict)"
            )
        self._read, self._ended = place["read"], place["ended"]
        if self._ended:
            # Some reset themselves for the next epoch when they are asked for more.
            next(self._iterator, None)

    def place(self, waiting: list[list[Any]]) -> Place:
        """Where the stream is, while these rows of position, tokens and more wait."""
        states = self._states()
        # At its end, what a data set says of itself may be of its next start.
        if not self._ended and any(state is not None for state in states.values()):
            self._marks.append({"marked": self._read, "lengths": 0, **states})
        oldest = min((row[0] for row in waiting), default=self._read)
        while len(self._marks) > 1 and self._marks[1]["marked"] <= oldest:
            self._marks.popleft()
        return {**self._marks[0], "read": self._read, "ended": self._ended, "waiting": waiting}

    def take(self, count: int) -> tuple[IntArray, Sizes]:
        """Positions and sizes of the next samples within the cap.

        Raises:
            PackingError: A size cannot be read, or a sample is above the cap.
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
            if size.tokens <= self._token_cap:
                self._kept[position] = size, sample
                taken.append(position)
            elif self._leave_out:
                self._left_out.append(position)
            else:
                raise too_long(position, size.tokens, self._token_cap)
        positions = numpy.array(taken, numpy.int64)
        return positions, self.sizes(positions)

    def sizes(self, positions: IntArray) -> Sizes:
        """Sizes of samples that are kept."""
        return gathered([self._kept[position][0] for position in positions.tolist()])

    def sample(self, position: int) -> Any:
        """A sample that is kept."""
        return self._kept[position][1]

    def forget(self, positions: list[int]) -> None:
        """Keep these samples no longer."""
        for position in positions:
            del self._kept[position]

    def take_left_out(self) -> list[int]:
        """Positions of samples that were passed over since this was last asked."""
        taken, self._left_out = self._left_out, []
        return taken

    def _add_length(self, tokens: int) -> None:
        for mark in self._marks:
            mark["lengths"] = zlib.crc32(tokens.to_bytes(8, "little"), mark["lengths"])

    def _states(self) -> dict[str, Any]:
        """State of the iterator, and of the data set where that is an object of its own."""
        states: dict[str, Any] = dict.fromkeys(_STATES)
        if hasattr(self._iterator, "state_dict"):
            states["iterator"] = copy.deepcopy(self._iterator.state_dict())
        if self._iterator is not self._dataset and hasattr(self._dataset, "state_dict"):
            states["dataset"] = copy.deepcopy(self._dataset.state_dict())
        return states
