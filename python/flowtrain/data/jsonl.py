"""A JSONL file with random access: one pass finds the lines, records are read on demand."""

from __future__ import annotations

import json
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowtrain.data.errors import DataError

_CHUNK_BYTES = 1 << 24

FileState = tuple[int, int]
"""Size of a file in bytes, and time of its last change in nanoseconds."""


def file_state(file: Path | int) -> FileState:
    """State of a file, given by its path or an open descriptor."""
    status = os.stat(file)
    return status.st_size, status.st_mtime_ns


class JsonlFile:
    """Records of a JSONL file by sample number, which counts from 0 and skips blank lines.

    The file stays open, so that a file that replaces it is never read.

    Args:
        path: The file.
        state: State that the file must have; None takes its state now.

    Raises:
        DataError: The file is missing, empty or no regular file, or has another state.
    """

    def __init__(self, path: Path, state: FileState | None = None) -> None:
        self.path = path
        if not path.exists():
            raise DataError(f"data.path={path}: there is no such file")
        if not path.is_file():
            raise DataError(
                f"data.path={path}: not a regular file (a folder or a pipe, say), so its lines "
                "cannot be read in random order; write the samples to a file"
            )
        file = path.open("rb", buffering=0)
        weakref.finalize(self, file.close)
        self._descriptor = file.fileno()
        self.state = state or file_state(self._descriptor)
        self.check_state()
        self._starts, self._ends, self._lines = _find_lines(self._descriptor)
        self.check_state()
        if len(self._lines) == 0:
            raise DataError(f"{path}: no samples; write one JSON object per line")

    def __len__(self) -> int:
        return len(self._lines)

    def where(self, sample: int) -> str:
        """File and line number of a sample, for error messages."""
        return f"{self.path}:{self.line(sample)}"

    def line(self, sample: int) -> int:
        """Line of a sample, from 1."""
        return int(self._lines[sample]) + 1

    def record(self, sample: int) -> dict[str, Any]:
        """The object on the line of a sample.

        Raises:
            DataError: The sample does not exist, the line is not a JSON object, or the file has
                changed since it was opened.
        """
        if not 0 <= sample < len(self):
            raise DataError(
                f"{self.path}: sample {sample} does not exist; the last one is {len(self) - 1}"
            )
        start, end = int(self._starts[sample]), int(self._ends[sample])
        # pread does not use the file position, which forked processes share.
        text = os.pread(self._descriptor, end - start, start)
        self.check_state()
        try:
            record = json.loads(text, object_pairs_hook=_object)
        except ValueError as error:
            raise DataError(
                f"{self.where(sample)}: not JSON ({error}); fix or drop the line"
            ) from error
        if not isinstance(record, dict):
            raise DataError(
                f"{self.where(sample)}: the line is a JSON {type(record).__name__}; "
                "it must be an object"
            )
        return record

    def check_state(self) -> None:
        """Check that the file has not changed.

        Raises:
            DataError: The file has changed.
        """
        if file_state(self._descriptor) != self.state:
            raise DataError(
                f"{self.path}: the file changed during the run; restore it and continue with "
                "--resume, or start another run"
            )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object with unique names; `json` would keep the last value of a repeated one."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} is given twice")
    return fields


def _find_lines(
    descriptor: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Start, end and number (from 0) of each line that is not blank."""
    starts, is_object = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.bool_)]
    size, after_newline = 0, True
    # Not mmap: if a mapped file is truncated, the kernel kills the process.
    while chunk := os.pread(descriptor, _CHUNK_BYTES, size):
        text = np.frombuffer(chunk, dtype=np.uint8)
        places = np.flatnonzero(np.append(after_newline, text[:-1] == ord("\n")))
        starts.append(places + size)
        is_object.append(text[places] == ord("{"))
        size += len(chunk)
        after_newline = chunk.endswith(b"\n")
    begin = np.concatenate(starts)
    end = np.append(begin[1:], size)[: len(begin)]
    # An object starts with a brace, so that few lines must be read here.
    full = np.concatenate(is_object)
    for line in np.flatnonzero(~full):
        full[line] = bool(os.pread(descriptor, end[line] - begin[line], begin[line]).strip())
    return begin[full], end[full], np.flatnonzero(full)
