"""Held-out images with what the trained model has read of them, in `RUN/strips.jsonl`."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flowtrain.train.state import atomic
from flowtrain.train.state.logs import lines_of, no_line

_FILE = "strips.jsonl"


@dataclass(frozen=True, slots=True)
class ReadStrip:
    """An image with a text, and what was read."""

    png: bytes
    expected: str
    read: str


def write_strips(run: Path, strips: Sequence[ReadStrip]) -> None:
    """Write them to a run's folder.

    Raises:
        OSError: The file cannot be written; the message names it.
    """
    lines = [
        json.dumps(
            {"expected": each.expected, "read": each.read, "png": b64encode(each.png).decode()}
        )
        for each in strips
    ]
    atomic.write_text(run / _FILE, "".join(f"{line}\n" for line in lines))


def read_strips(run: Path) -> list[ReadStrip]:
    """Those of a run's folder; none if there is no such file.

    Raises:
        RunFileError: The file cannot be read, or a line is none of it; the message names both.
    """
    found = []
    for number, line in enumerate(lines_of(run / _FILE), 1):
        try:
            png = b64decode(line["png"], validate=True)
            found.append(ReadStrip(png, str(line["expected"]), str(line["read"])))
        except (LookupError, TypeError, ValueError) as error:
            raise no_line(run / _FILE, number, repr(error)) from error
    return found
