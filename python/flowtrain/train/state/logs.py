"""Logs of a run: one JSON object per line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

METRICS = "metrics.jsonl"
EVALUATIONS = "eval.jsonl"
ANSWERS = "answers.jsonl"
TIMING = "timing.jsonl"
PLANS = "plan.log"
POOL = "pool"
"""File with the name of the run's pool."""
SPOOL = "stream"
"""Folder with the records of a stream, if the run reads one."""
LOGS = (METRICS, EVALUATIONS, ANSWERS, TIMING, PLANS)
"""Logs whose lines have a step; they are cut to the step where a run resumes."""


def json_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with null for numbers that are not finite, which JSON cannot hold."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


def append(log: Path, line: str) -> None:
    """Append a line to a log.

    Raises:
        OSError: The line cannot be written; the message names the log.
    """
    try:
        with log.open("a") as file:
            file.write(line + "\n")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(log)) from error


def read_log(path: Path) -> list[dict[str, Any]]:
    """Read the objects of a log.

    Raises:
        ValueError: A line is not JSON; the message has the file and the line number.
    """
    objects = []
    with path.open("rb") as log:
        for number, line in enumerate(log, 1):
            with _line_errors(path, number):
                objects.append(json.loads(line))
    return objects


def cut(path: Path, step: int) -> None:
    """Remove the lines of a log from `step` on, and an incomplete last line."""
    if not path.exists():
        return
    # The file is shortened in place, so that a kill cannot lose the lines that are kept.
    with path.open("r+b") as log:
        kept = 0
        for number, line in enumerate(log, 1):
            if not line.endswith(b"\n"):
                break
            with _line_errors(path, number):
                if int(json.loads(line)["step"]) >= step:
                    break
            kept += len(line)
        log.truncate(kept)


@contextmanager
def _line_errors(path: Path, number: int) -> Iterator[None]:
    """Turn errors of reading a line within the block into a ValueError that names the line."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}:{number}: not a line of this log ({error!r}); correct it, or start another run"
        ) from error
