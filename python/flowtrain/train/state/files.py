"""Files of a run's folder: a user may have deleted, cut or replaced them since."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flowtrain.error_texts import cause_of
from flowtrain_core import FlowTrainError

LOCK = "lock"
"""File that a launcher locks while it trains there."""


class RunFileError(FlowTrainError, ValueError):
    """A file of a run's folder cannot be used; the message names file, cause and way out."""


def read_text(path: Path, *, way_out: str) -> str:
    """Text of a file.

    Args:
        path: The file.
        way_out: What the user can do if the file cannot be used, for the message.

    Raises:
        RunFileError: It cannot be read, or is not text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RunFileError(f"{path}: {cause_of(error)}; {way_out}") from error
    except UnicodeDecodeError as error:
        raise RunFileError(f"{path}: not text ({error}); {way_out}") from error


def read_object(path: Path, keys: Iterable[str], *, way_out: str) -> dict[str, Any]:
    """Object of a JSON file.

    Args:
        path: The file.
        keys: Keys that it must have.
        way_out: As in `read_text`.

    Raises:
        RunFileError: The file cannot be read, is not JSON, or holds something else.
    """
    text = read_text(path, way_out=way_out)
    try:
        found = json.loads(text)
    except ValueError as error:
        cause = f"not JSON ({error})" if text else "it is empty"
        raise RunFileError(f"{path}: {cause}; {way_out}") from error
    if not isinstance(found, dict):
        raise RunFileError(f"{path}: it holds no object of JSON; {way_out}")
    if missing := [key for key in keys if key not in found]:
        raise RunFileError(f"{path}: it lacks {', '.join(missing)}; {way_out}")
    return found


def without(checkpoint: Path) -> str:
    """The way out of a checkpoint that cannot be read."""
    return f"correct that, or remove {checkpoint} to take the checkpoint before it"
