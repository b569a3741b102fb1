"""Memory in which the arrays of a worker process reach the process that asked for them."""

from __future__ import annotations

import dataclasses
import mmap
import multiprocessing
import os
import struct
import weakref
from bisect import bisect_left, insort
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_SPACE_BYTES = 1 << 30
# Smaller arrays are sent with their answer: their copies take less time than a place does.
_MIN_BYTES = 1 << 14
_ALIGNMENT = 64
# The pipe for returned places holds more messages than that, so that no return ever blocks.
_MAX_PLACES = 4096
_OFFSET = struct.Struct("=Q")


class Place(NamedTuple):
    """Where an array is.

    Attributes:
        offset: Its first byte in the space.
        shape: Its shape.
        dtype: Its dtype, as `numpy.dtype` takes it.
    """

    offset: int
    shape: tuple[int, ...]
    dtype: str


class SharedSpace:
    """Memory that a worker process, the writer, fills for the process that made it, the reader.

    It holds the arrays in fields of dataclasses. It has no name, and ends with its last process and
    array. Pages take memory once they are written, and an array takes the lowest place that is
    large enough: the space takes about as much as its arrays have had at once.

    Places return by a pipe, which also orders what both processes do with their memory. Nothing
    waits for space: an array that finds none stays where it is, and is sent with its answer.

    Args:
        size: Its bytes.

    Attributes:
        size: Its bytes.
        spilled_bytes: Bytes of the arrays that found no place so far; of the writer.
    """

    def __init__(self, size: int = _SPACE_BYTES) -> None:
        self._reader = os.getpid()
        self._returned, self._returns = multiprocessing.Pipe(duplex=False)
        self._file = os.memfd_create("flowtrain-worker")
        try:
            os.ftruncate(self._file, size)
            self._map(size)
        except OSError as error:
            raise OSError(
                error.errno,
                f"a data worker: {size} bytes of shared memory, of which it takes what it needs: "
                f"{error.strerror}; raise the limits of the process (ulimit -f, ulimit -v), or let "
                "a thread read (data.workers=0)",
            ) from error

    def _map(self, size: int) -> None:
        self.size = size
        self.spilled_bytes = 0
        self._memory = mmap.mmap(self._file, size)
        # Of the writer: holes as (offset, bytes) and bytes of places, both by offset.
        self._holes = [(0, size)]
        self._taken: dict[int, int] = {}

    @staticmethod
    def of_writer(file: int, returned: int, size: int) -> SharedSpace:
        """The space in a process that was executed with the files of `files` open.

        Args:
            file: As there.
            returned: As there.
            size: The bytes of the space.
        """
        space = SharedSpace.__new__(SharedSpace)
        space._file, space._returned = file, Connection(returned, writable=False)
        space._map(size)
        return space

    def files(self) -> tuple[int, int]:
        """File descriptors that the writer needs if it does not inherit this object."""
        return self._file, self._returned.fileno()

    def given_away(self) -> None:
        """To be called by the reader once the writer has started."""
        self._returned.close()
        os.close(self._file)

    def put(self, value: Any) -> Any:
        """The value with places for its arrays; of the writer."""
        return _replaced(value, np.ndarray, self._write)

    def drop(self, value: Any) -> None:
        """Free the places in a value that cannot be sent; of the writer."""
        _replaced(value, Place, lambda place: self._free(place.offset))

    def get(self, value: Any) -> Any:
        """The value with its arrays, which keep their places while they live; of the reader."""
        return _replaced(value, Place, self._view)

    def _view(self, place: Place) -> NDArray[Any]:
        dtype = np.dtype(place.dtype)
        count = int(np.prod(place.shape))
        view = np.frombuffer(self._memory, dtype, count, place.offset)
        weakref.finalize(view, self._give_back, place.offset).atexit = False
        return view.reshape(place.shape)

    def _give_back(self, offset: int) -> None:
        if os.getpid() != self._reader:
            return  # A process that was forked later has copies of the arrays.
        with suppress(OSError):  # The writer has ended.
            self._returns.send_bytes(_OFFSET.pack(offset))

    def _write(self, array: NDArray[Any]) -> Place | NDArray[Any]:
        """Copy an array into the lowest hole that is large enough."""
        if array.nbytes < _MIN_BYTES or not array.dtype.isbuiltin:
            return array
        while self._returned.poll():
            self._free(*_OFFSET.unpack(self._returned.recv_bytes()))
        needed = -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        found = next((n for n, (_, size) in enumerate(self._holes) if size >= needed), None)
        if found is None or len(self._taken) >= _MAX_PLACES:
            self.spilled_bytes += array.nbytes
            return array
        offset, size = self._holes.pop(found)
        if size > needed:
            self._holes.insert(found, (offset + needed, size - needed))
        self._taken[offset] = needed
        target = np.frombuffer(self._memory, array.dtype, array.size, offset)
        np.copyto(target.reshape(array.shape), array)
        return Place(offset, array.shape, array.dtype.str)

    def _free(self, offset: int) -> None:
        """Make a place a hole, joined with those around it."""
        size = self._taken.pop(offset)
        at = bisect_left(self._holes, (offset, 0))
        if at < len(self._holes) and self._holes[at][0] == offset + size:
            size += self._holes.pop(at)[1]
        if at and sum(self._holes[at - 1]) == offset:
            before, length = self._holes.pop(at - 1)
            offset, size = before, size + length
        insort(self._holes, (offset, size))


def _replaced(value: Any, kind: type, replace: Callable[[Any], Any]) -> Any:
    """A value in which the fields of a kind are replaced, if it is a dataclass."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    of_kind = {
        field.name: found
        for field in dataclasses.fields(value)
        if isinstance(found := getattr(value, field.name), kind)
    }
    if not of_kind:
        return value
    return dataclasses.replace(value, **{name: replace(found) for name, found in of_kind.items()})
