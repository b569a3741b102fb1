"""JSON files that are one array of objects."""

from __future__ import annotations

import os
from array import array

import numpy as np
from numpy.typing import NDArray

from flowtrain.data.errors import DataError
from flowtrain.data.records.base import chunks
from flowtrain.data.records.json_text import JsonText, TextIndex

_BOM = b"\xef\xbb\xbf"
_STEP = np.zeros(256, dtype=np.int64)
"""Change of the nesting depth by a byte outside strings."""
_STEP[list(b"[{")] = 1
_STEP[list(b"]}")] = -1
_MARK = _STEP != 0
_MARK[list(b',"\\')] = True


class JsonArrayFile(JsonText):
    """Records of a JSON file that is an array. The array is never parsed as a whole.

    Raises:
        DataError: The file is missing, empty, no array or no regular file, or has another state.
    """

    def _text(self, sample: int) -> bytes:
        return super()._text(sample)[1:]  # Without the bracket or comma in front.

    def _find(self) -> TextIndex:
        begin = os.pread(self._descriptor, 1 << 12, 0).removeprefix(_BOM).lstrip()
        if begin and not begin.startswith(b"["):
            raise DataError(
                f"{self.name}: the file starts with {begin[:20].decode(errors='replace')!r}; a "
                ".json file must be an array of objects, as in [{...}, {...}]; name a file of one "
                "object per line .jsonl"
            )
        scan = _Scan(self.name)
        for offset, text in chunks(self._descriptor):
            scan.add(offset, text)
        if begin and not scan.ended:
            raise DataError(
                f"{self.name}: the array does not end: a quote or bracket is missing; restore the "
                "file"
            )
        bounds = np.frombuffer(scan.bounds, dtype=np.int64)
        if len(bounds) <= 2:
            first, last = (bounds[0] + 1, bounds[-1]) if len(bounds) else (0, 0)
            if not os.pread(self._descriptor, int(last - first), int(first)).strip():
                bounds = np.zeros(1, dtype=np.int64)
        return TextIndex(bounds, np.empty(0, dtype=np.int64))

    def _way_out(self) -> str:
        return "write an array of objects, as in [{...}, {...}]"


class _Scan:
    """Finds the brackets and commas around the elements of an array, chunk by chunk.

    Attributes:
        bounds: Offsets of the opening bracket, of each comma, and of the closing bracket.
        ended: Whether the closing bracket was found.
    """

    def __init__(self, name: str) -> None:
        self.bounds = array("q")
        self.ended = False
        self._name = name
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        """Whether the last byte is a backslash that escapes the next one."""

    def add(self, offset: int, text: NDArray[np.uint8]) -> None:
        """Scan the next chunk.

        Raises:
            DataError: Something follows the array.
        """
        if not self.ended:
            marks = np.flatnonzero(_MARK[text])
            marks = self._outside_strings(text, marks)
            steps = _STEP[text[marks]]
            depths = steps.cumsum() + self._depth
            (ends,) = np.nonzero((depths == 0) & (steps < 0))
            if len(ends):
                marks, steps, depths = (each[: ends[0] + 1] for each in (marks, steps, depths))
                self.ended = True
            is_bound = np.where(steps == 0, depths == 1, depths == (steps > 0))
            self.bounds.frombytes((marks[is_bound] + offset).tobytes())
            self._depth = int(depths[-1]) if len(depths) else self._depth
            if not self.ended:
                return
            text = text[marks[-1] + 1 :]
        if rest := text.tobytes().strip():
            raise DataError(
                f"{self._name}: after the array, {rest[:20].decode(errors='replace')!r} follows; "
                "write a single array, or one object per line into a .jsonl file"
            )

    def _outside_strings(
        self, text: NDArray[np.uint8], marks: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The brackets and commas among the marks of a chunk that are in no string."""
        kinds = text[marks]
        quotes = marks[kinds == ord('"')]
        escaped = self._escaped(marks[kinds == ord("\\")], len(text))
        if len(escaped):
            quotes = quotes[~np.isin(quotes, escaped)]
        others = marks[(kinds != ord('"')) & (kinds != ord("\\"))]
        before = np.searchsorted(quotes, others)
        outside = others[(before + self._in_string) % 2 == 0]
        self._in_string ^= len(quotes) % 2 == 1
        return outside

    def _escaped(self, slashes: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        """Places of the characters after a backslash that is not escaped itself."""
        if self._is_escaped:
            slashes = np.insert(slashes, 0, -1)
        number = np.arange(len(slashes))
        begins = np.diff(slashes, prepend=-3) != 1
        # In a run of backslashes, every second one is escaped.
        in_run = number - np.maximum.accumulate(np.where(begins, number, 0))
        escaped = slashes[in_run % 2 == 0] + 1
        self._is_escaped = bool(len(escaped)) and bool(escaped[-1] == size)
        return escaped
