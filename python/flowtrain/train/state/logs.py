"""Logs of a run: one JSON object per line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flowtrain.error_texts import cause_of
from flowtrain.train.state.files import RunFileError
from flowtrain.train.state.resume import FINGERPRINT

METRICS = "metrics.jsonl"
EVALUATIONS = "eval.jsonl"
ANSWERS = "answers.jsonl"
TIMING = "timing.jsonl"
PLANS = "plan.log"
POOL = "pool"
"""File with the name of the run's pool."""
PROFILE = "profile"
"""Folder with what torch's profiler has traced, in a file for each rank."""
SPOOL = "stream"
"""Folder with the records of a stream, if the run reads one."""
LOGS = (METRICS, EVALUATIONS, ANSWERS, TIMING, PLANS)
"""Logs whose lines have a step; they are cut to the step where a run resumes."""
OF_EVERY_STEP = (METRICS, TIMING, PLANS)
"""Logs in which every step has a line."""


def json_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with null for numbers that are not finite, which JSON cannot hold."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


class Log:
    """Appends lines to a log, for one start of its run.

    A process that was stopped meanwhile adds nothing to the log of a later start, which may be
    training already.

    Args:
        path: The log.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written_at_start = path.parent / FINGERPRINT
        self._start = self._last_start()

    def append(self, line: str) -> None:
        """Append a line.

        Raises:
            OSError: The line cannot be written; the message names the log.
            RunFileError: The run was started again.
        """
        if self._last_start() != self._start:
            raise RunFileError(
                f"{self._path}: the run was started again, and this process is of the start before"
            )
        try:
            with self._path.open("a") as file:
                file.write(line + "\n")
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def append_values(self, values: Mapping[str, Any]) -> None:
        """Append an object, with null for numbers that are not finite.

        Raises:
            OSError, RunFileError: As `append`.
        """
        self.append(json.dumps(json_values(values), separators=(",", ":"), allow_nan=False))

    def _last_start(self) -> tuple[int, int] | None:
        """Inode and time of change of a file that each start of the run writes anew."""
        try:
            found = self._written_at_start.stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns


def read_log(path: Path) -> list[dict[str, Any]]:
    """The objects of a log; none if there is no such file.

    Raises:
        RunFileError: The file cannot be read, or a line is no object; the message names both.
    """
    return list(lines_of(path))


def lines_of(path: Path, *, growing: bool = False) -> Iterator[dict[str, Any]]:
    """The objects of a log, one after the other; none if there is no such file.

    Args:
        path: The log.
        growing: Whether a rank may be writing it, or was killed there: an incomplete last line is
            left out.

    Raises:
        RunFileError: As `read_log`.
    """
    if not path.exists():
        return
    with _file_errors(path), path.open("rb") as log:
        for number, line in enumerate(log, 1):
            if growing and not line.endswith(b"\n"):
                return
            yield _object(path, number, line)


def cut(path: Path, step: int) -> int:
    """Remove the lines of a log from `step` on, and an incomplete last line.

    Returns:
        Number of steps that have a line.

    Raises:
        RunFileError: As `read_log`, or a line has no step.
    """
    if not path.exists():
        return 0
    steps = set()
    # The file is shortened in place, so that a kill cannot lose the lines that are kept.
    with _file_errors(path), path.open("r+b") as log:
        kept = 0
        for number, line in enumerate(log, 1):
            if not line.endswith(b"\n"):
                break
            of_step = _object(path, number, line).get("step")
            if not isinstance(of_step, int):
                raise no_line(path, number, f"step={of_step!r}")
            if of_step >= step:
                break
            steps.add(of_step)
            kept += len(line)
        log.truncate(kept)
    return len(steps)


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFileError(f"{path}: {cause_of(error)}; move it away, and go on") from error


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise no_line(path, number, str(error)) from error
    if not isinstance(found, dict):
        raise no_line(path, number, "no object")
    return found


def no_line(path: Path, number: int, cause: str) -> RunFileError:
    """The error of a line that is none of its log."""
    return RunFileError(
        f"{path}:{number}: not a line of this log ({cause}); correct or remove the line, and go on"
    )
