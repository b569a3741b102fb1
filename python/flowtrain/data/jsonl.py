"""A JSONL file with random access: one pass finds the lines, the rest is read when asked for."""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any

import numpy as np

from flowtrain.data.errors import DataError


class JsonlFile:
    """Records of a JSONL file by line number, from 0.

    Args:
        path: The file.

    Raises:
        DataError: It is missing or empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                if file.seek(0, 2) == 0:
                    raise DataError(f"{path}: the file is empty; write one sample a line")
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
                    bytes_ = np.frombuffer(text, dtype=np.uint8)
                    ends = np.flatnonzero(bytes_ == ord("\n")).astype(np.int64) + 1
                    size = len(bytes_)
                    del bytes_
        except FileNotFoundError as error:
            raise DataError(f"data.path={path}: there is no such file") from error
        if len(ends) == 0 or ends[-1] != size:
            ends = np.append(ends, size)
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    def where(self, line: int) -> str:
        """Name of a line for people: file and line number from 1."""
        return f"{self.path}:{line + 1}"

    def record(self, line: int) -> dict[str, Any]:
        """The object on a line.

        Raises:
            IndexError: There is no such line.
            DataError: The line is not a JSON object.
        """
        if not 0 <= line < len(self):
            raise IndexError(f"{self.path}: sample {line}, and the file has 0 to {len(self) - 1}")
        start = int(self._ends[line - 1]) if line else 0
        with self.path.open("rb") as file:
            file.seek(start)
            text = file.read(int(self._ends[line]) - start)
        try:
            record = json.loads(text)
        except ValueError as error:
            raise DataError(
                f"{self.where(line)}: not JSON ({error}); fix or drop the line"
            ) from error
        if not isinstance(record, dict):
            raise DataError(
                f"{self.where(line)}: a JSON {type(record).__name__} where an object is needed"
            )
        return record
