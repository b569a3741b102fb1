"""Base of the JSON formats: one pass finds the records, which are parsed on demand."""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowtrain.data.errors import DataError
from flowtrain.data.records.base import FileRecords, State


@dataclass(frozen=True, slots=True)
class TextIndex:
    """Places of the records of a text file.

    Attributes:
        bounds: Offsets in bytes, shape [num_records + 1]. Record i lies between bounds i and
            i + 1.
        blanks: For each blank line the number of records before it, shape [num_blank_lines].
    """

    bounds: NDArray[np.int64]
    blanks: NDArray[np.int64]


# The last state of each file and its index, by format and file: a process opens its data files
# several times, and worker processes inherit the indexes of the process that they are forked from.
_indexes: dict[tuple[object, ...], tuple[State, TextIndex]] = {}


class JsonText(FileRecords):
    """Records of a text file with JSON objects; see `FileRecords`.

    Raises:
        DataError: As FileRecords; or the file has no samples.
    """

    def __init__(self, path: Path, state: State | None = None) -> None:
        super().__init__(path, state)
        self._check_encoding()
        status = os.fstat(self._descriptor)
        key = (type(self), status.st_dev, status.st_ino)
        state, index = _indexes.get(key, (None, None))
        if index is None or state != self.state:
            index = self._find()
            self.check_state()
            _indexes[key] = self.state, index
        self._bounds, self._blanks = index.bounds, index.blanks
        if len(self) == 0:
            raise DataError(f"{path}: no samples; {self._way_out()}")

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def _check_encoding(self) -> None:
        """Refuse UTF-16 and UTF-32, by their byte-order marks or the zeros of their first letters.

        Raises:
            DataError: The file has one of them.
        """
        head = os.pread(self._descriptor, 4, 0)
        if head.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in head:
            raise DataError(
                f"{self.name}: the file is not in UTF-8, but in UTF-16, say (its first bytes are "
                f"{head.hex(' ')}); convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW"
            )

    @abstractmethod
    def _find(self) -> TextIndex:
        """Find the records of the open file."""

    @abstractmethod
    def _way_out(self) -> str:
        """What to write in a file without samples."""

    def _text(self, sample: int) -> bytes:
        start, end = int(self._bounds[sample]), int(self._bounds[sample + 1])
        # pread does not use the file position, which forked processes share.
        return os.pread(self._descriptor, end - start, start)

    def _read(self, sample: int) -> Any:
        text = self._text(sample)
        self.check_state()
        try:
            return json.loads(text, object_pairs_hook=_object)
        except ValueError as error:
            raise DataError(
                f"{self.where(sample)}: not JSON ({error}); fix or drop the {self.unit}"
            ) from error

    def _not_a_record(self, sample: int, record: Any) -> str:
        return (
            f"{self.where(sample)}: the {self.unit} is a JSON {type(record).__name__}; "
            "it must be an object"
        )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object with unique names; `json` would keep the last value of a repeated one."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} is given twice")
    return fields
