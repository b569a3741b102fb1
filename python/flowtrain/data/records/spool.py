"""Records of a stream in files, by which every process reads the same ones."""

from __future__ import annotations

import json
import os
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import Any

from flowtrain.data.errors import DataError
from flowtrain.data.records.stream import StreamRecords

SEGMENT_RECORDS = 4096
"""Records of each file of a spool, except the last one."""

_OPEN_SEGMENTS = 4


def segment_of(folder: Path, sample: int) -> Path:
    """File of a spool that holds a record."""
    return folder / f"{sample // SEGMENT_RECORDS:09}.jsonl"


def segments(folder: Path) -> list[Path]:
    """Files of a spool, in order."""
    return sorted(folder.glob("*.jsonl"))


def drop_before(folder: Path, sample: int) -> None:
    """Remove files of a spool whose records are all before a record.

    One more is kept, with which a resumed run compares the stream.
    """
    first = segment_of(folder, max(0, sample - SEGMENT_RECORDS))
    for path in segments(folder):
        if path < first:
            path.unlink()


class Spool(StreamRecords):
    """Records of a stream that one process has written to files: one line per record.

    Args:
        spec: Import path of the data set.
        folder: The folder with the files.
    """

    def __init__(self, spec: str, folder: Path) -> None:
        super().__init__(spec)
        self._folder = folder
        self._open: OrderedDict[Path, _Segment] = OrderedDict()

    def text(self, sample: int) -> bytes | None:
        """Line of a record; None if its file was removed.

        Raises:
            DataError: The file ends before the record.
        """
        path = segment_of(self._folder, sample)
        try:
            line = self._segment(path).line(sample % SEGMENT_RECORDS)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DataError(f"{self.where(sample)}: {path}: {error.strerror}") from error
        if line is None:
            raise DataError(f"{self.where(sample)}: {path} ends before it; {_WAY_OUT}")
        return line

    def _read(self, sample: int) -> Any:
        text = self.text(sample)
        if text is None:
            path = segment_of(self._folder, sample)
            raise DataError(f"{self.where(sample)}: {path} is missing; {_WAY_OUT}")
        try:
            return json.loads(text)
        except ValueError as error:
            path = segment_of(self._folder, sample)
            raise DataError(f"{self.where(sample)}: {path}: {error}; {_WAY_OUT}") from error

    def _segment(self, path: Path) -> _Segment:
        if path not in self._open:
            self._open[path] = _Segment(path)
            if len(self._open) > _OPEN_SEGMENTS:
                self._open.popitem(last=False)
        self._open.move_to_end(path)
        return self._open[path]


_WAY_OUT = "restore the file and continue with --resume, or start another run"


class _Segment:
    """Lines of a file that another process may still append to."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        weakref.finalize(self, self._file.close)
        self._ends = [0]

    def line(self, number: int) -> bytes | None:
        """A line of the file; None if it is not complete yet."""
        if len(self._ends) <= number + 1:
            self._file.seek(self._ends[-1])
            for line in self._file:
                if not line.endswith(b"\n"):
                    break
                self._ends.append(self._ends[-1] + len(line))
        if len(self._ends) <= number + 1:
            return None
        start, end = self._ends[number : number + 2]
        return os.pread(self._file.fileno(), end - start, start)
