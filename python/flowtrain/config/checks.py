"""Checks of fields, and the error that names the field."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
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


def check_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[Path | str | None]) -> None:
    """Refuse files that could not be written when all work for them is done, or should not be.

    Args:
        outputs: The files, by the options that name them.
        inputs: What is read.

    Raises:
        ConfigError: The folder of one does not exist, or it is read, or is named by two options.
    """
    read = {Path(path).resolve() for path in inputs if path}
    written: dict[Path, str] = {}
    for option, path in outputs.items():
        if path is None:
            continue
        require(
            path.absolute().parent.is_dir(),
            f"{option}={path}: there is no folder {path.parent}; make it first",
        )
        require(
            path.resolve() not in read,
            f"{option}={path}: it is read, and would be lost; name another file",
        )
        other = written.setdefault(path.resolve(), option)
        require(other == option, f"{option}={path}: {other} is the same file; name another one")
