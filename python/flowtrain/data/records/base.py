"""Interface of the formats: records of a data set by sample number."""

from __future__ import annotations

import hashlib
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowtrain.data.errors import DataError
from flowtrain.git_lfs import POINTER, is_pointer

_CHUNK_BYTES = 1 << 22
_BLOCK_BYTES = 1 << 20

State = str
"""State of a data set, compared to detect that it has changed. Valid on this host only."""

FileState = tuple[int, int]
"""Size of a file in bytes, and time of its last change in nanoseconds."""


def file_state(file: Path | int) -> FileState:
    """State of a file, given by its path or an open descriptor."""
    status = os.stat(file)
    return status.st_size, status.st_mtime_ns


def check_exists(name: str, sample: int, number: int) -> None:
    """Refuse a sample number that a data set of a number of samples does not have."""
    if not 0 <= sample < number:
        raise DataError(f"{name}: sample {sample} does not exist; the last one is {number - 1}")


def chunks(descriptor: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Offset and bytes of each chunk of a file; a chunk is valid until the next one."""
    # Not mmap: if a mapped file is truncated, the kernel kills the process.
    buffer, offset = bytearray(_CHUNK_BYTES), 0
    text = np.frombuffer(buffer, dtype=np.uint8)
    while size := os.preadv(descriptor, [buffer], offset):
        yield offset, text[:size]
        offset += size


def hash_of(descriptor: int, *, every: int = 1) -> str:
    """Hash of a file, or of its size, its last block and one block in so many, of 1 MiB each."""
    digest = hashlib.sha256()
    if every == 1:
        for _, chunk in chunks(descriptor):
            digest.update(chunk.data)
        return digest.hexdigest()
    size, _ = file_state(descriptor)
    digest.update(f"{size} bytes, one block in {every}\n".encode())
    last = max(0, size - _BLOCK_BYTES)
    for offset in [*range(0, last, every * _BLOCK_BYTES), last]:
        digest.update(os.pread(descriptor, _BLOCK_BYTES, offset))
    return digest.hexdigest()


class Records(ABC):
    """Records of a data set by sample number, from 0. Each thread or process opens its own.

    Args:
        name: Path or import path of the data set, for error messages.
        state: State that the data set must have; None takes its state now.

    Raises:
        DataError: The data set has another state.
    """

    unit = "row"
    """Name of the place of a sample in error messages."""

    def __init__(self, name: str, state: State | None) -> None:
        self.name = name
        self.state = state or self._state_now()
        self.check_state()

    @abstractmethod
    def __len__(self) -> int:
        """Number of samples."""

    @abstractmethod
    def _read(self, sample: int) -> Any:
        """The record of a sample that exists; any type, as `record` checks it."""

    @abstractmethod
    def _state_now(self) -> State: ...

    @property
    def num_bytes(self) -> int:
        """Bytes that `contents` reads."""
        return 0

    @abstractmethod
    def contents(self, *, every: int = 1) -> str:
        """Hash of the contents, which is the same wherever the data set lies.

        Args:
            every: One block in so many is read.

        Raises:
            DataError: The data set has changed since it was opened.
        """

    def where(self, sample: int) -> str:
        """Data set and place of a sample, for error messages."""
        return f"{self.name}: {self.unit} {sample}"

    def line(self, sample: int) -> int | None:
        """Line of a sample, from 1; None in a format without lines."""
        return None

    def record(self, sample: int) -> dict[str, Any]:
        """The record of a sample: a conversation as on a line of a JSONL file.

        Raises:
            DataError: The sample does not exist, its record cannot be read or is not a
                dictionary, or the data set has changed since it was opened.
        """
        check_exists(self.name, sample, len(self))
        record = self._read(sample)
        if not isinstance(record, dict):
            raise DataError(self._not_a_record(sample, record))
        return record

    def _not_a_record(self, sample: int, record: Any) -> str:
        return f"{self.where(sample)} is a {type(record).__name__}; it must be an object"

    def check_state(self) -> None:
        """Check that the data set has not changed.

        Raises:
            DataError: The data set has changed.
        """
        if self._state_now() != self.state:
            raise DataError(
                f"{self.name}: the data changed during the run; restore it and continue with "
                "--resume, or start another run"
            )


class FileRecords(Records):
    """Records of one file, which stays open, so that a file that replaces it is never read.

    Args:
        path: The file.
        state: State that the file must have; None takes its state now.

    Raises:
        DataError: The file is missing, cannot be opened or is no regular file, or has another
            state.
    """

    def __init__(self, path: Path, state: State | None = None) -> None:
        if not path.exists():
            raise DataError(f"{path}: there is no such file")
        if not path.is_file():
            raise DataError(
                f"{path}: not a regular file (a folder or a pipe, say), so its records "
                "cannot be read in random order; write the samples to a file"
            )
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise DataError(
                f"{path}: cannot be opened ({error.strerror}); check its permissions, and with "
                "very many files in data.sources raise `ulimit -n` or join files"
            ) from error
        weakref.finalize(self, self._file.close)
        self._descriptor = self._file.fileno()
        if is_pointer(os.pread(self._descriptor, 1 << 8, 0)):
            raise DataError(f"{path}: {POINTER}")
        super().__init__(str(path), state)

    def _state_now(self) -> State:
        size, time_ns = file_state(self._descriptor)
        return f"{size} bytes, changed at {time_ns} ns"

    @property
    def num_bytes(self) -> int:
        return file_state(self._descriptor)[0]

    def contents(self, *, every: int = 1) -> str:
        digest = hash_of(self._descriptor, every=every)
        self.check_state()
        return digest
