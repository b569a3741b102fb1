"""Versions of transformers that the families support."""

from __future__ import annotations

import importlib.metadata
import re

from flowtrain.models.errors import ModelError

_FIRST = (5, 18)
_NEXT_MAJOR = 6


def require_transformers() -> None:
    """Check that transformers has `mm_encoder_outputs`, where models are split.

    Raises:
        ModelError: transformers is missing, too old or too new; the message gives the pip command.
    """
    command = "pip install 'transformers>=5.18,<6'"
    try:
        version = importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError as error:
        raise ModelError(f"transformers is not installed; run {command}") from error
    # A pre-release such as 5.18rc1 has no dot after its second number.
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if not _FIRST <= numbers < (_NEXT_MAJOR, 0):
        raise ModelError(
            f"transformers {version} is installed; FlowTrain needs at least 5.18 and less than 6; "
            f"run {command}"
        )
