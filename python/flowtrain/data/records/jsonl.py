"""JSONL files: one object per line."""

from __future__ import annotations

import os
from array import array

import numpy as np

from flowtrain.data.records.base import chunks
from flowtrain.data.records.json_text import JsonText, TextIndex

_SPACES = tuple(b" \t\n\r\v\f")


class JsonlFile(JsonText):
    """Records of a JSONL file. Blank lines are skipped: they have no sample number.

    Raises:
        DataError: The file is missing, without samples or no regular file, or has another state.
    """

    unit = "line"

    def where(self, sample: int) -> str:
        return f"{self.name}:{self.line(sample)}"

    def line(self, sample: int) -> int:
        return sample + int(np.searchsorted(self._blanks, sample, side="right")) + 1

    def _text(self, sample: int) -> bytes:
        # Blank lines that follow.
        return super()._text(sample).rstrip()

    def _find(self) -> TextIndex:
        return _find_lines(self._descriptor)

    def _way_out(self) -> str:
        return "write one JSON object per line"


def _find_lines(descriptor: int) -> TextIndex:
    """Index of the lines that are not blank."""
    # Arrays that grow in place: lists of arrays would take twice the memory while they are joined.
    starts, blanks = array("q"), array("q")
    size, after_newline = 0, True
    for offset, text in chunks(descriptor):
        places = np.flatnonzero(text[:-1] == ord("\n")) + 1
        if after_newline:
            places = np.insert(places, 0, 0)
        first = text[places]
        # An object starts with a brace, so that few lines must be read here.
        blank = [
            place
            for place in np.flatnonzero(np.isin(first, _SPACES)).tolist()
            if first[place] == ord("\n") or _is_blank(descriptor, offset + int(places[place]))
        ]
        blanks.extend(len(starts) + place - before for before, place in enumerate(blank))
        if blank:
            places = np.delete(places, blank)
        starts.frombytes((places + offset).tobytes())
        size, after_newline = offset + len(text), text[-1] == ord("\n")
    starts.append(size)
    return TextIndex(np.frombuffer(starts, np.int64), np.frombuffer(blanks, np.int64))


def _is_blank(descriptor: int, start: int) -> bool:
    """Whether the line at an offset has only white space."""
    while text := os.pread(descriptor, 1 << 12, start):
        line, newline, _ = text.partition(b"\n")
        if line.strip():
            return False
        if newline:
            break
        start += len(text)
    return True
