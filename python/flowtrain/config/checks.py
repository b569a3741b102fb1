"""Checks of fields, and the error that names the field."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from flowtrain_core import FlowTrainError


class ConfigError(FlowTrainError, ValueError):
    """A configuration field has an unusable value; the message names the field."""


def require(ok: bool, message: str) -> None:
    """Raise a ConfigError with the message if the condition does not hold."""
    if not ok:
        raise ConfigError(message)


def positive(**fields: float) -> None:
    """Require finite values above 0; `a__b` is the field `a.b`."""
    for name, value in fields.items():
        require(
            0 < value < math.inf,
            f"{name.replace('__', '.')}={value}: it must be greater than 0, and finite",
        )


def not_negative(**fields: float) -> None:
    """Require finite values of 0 or more; `a__b` is the field `a.b`."""
    for name, value in fields.items():
        require(
            0 <= value < math.inf,
            f"{name.replace('__', '.')}={value}: it must be 0 or more, and finite",
        )


def has_folder(option: str, path: Path) -> None:
    """Refuse a file that could not be written when all work for it is done.

    Raises:
        ConfigError: Its folder does not exist.
    """
    require(
        path.absolute().parent.is_dir(),
        f"{option}={path}: there is no folder {path.parent}; make it first",
    )


def is_no_input(option: str, path: Path, inputs: Iterable[Path | None]) -> None:
    """Refuse a file to be written that is one of those that are read.

    Raises:
        ConfigError: It is.
    """
    for found in inputs:
        if found is not None and path.resolve() == found.resolve():
            raise ConfigError(f"{option}={path}: it is read, and would be lost; name another file")
