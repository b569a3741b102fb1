"""The words `a.b=value` behind a command, which change the configuration of a run."""

from __future__ import annotations

import argparse
from typing import Any

HELP = "dotted overrides; relative paths in them start at the working directory"


def add_overrides(
    parser: argparse.ArgumentParser, *, metavar: str = "a.b=value", help: str = HELP, **options: Any
) -> None:
    """Add the argument `overrides`, a list of words that may be empty."""
    # Without a default, argparse says that they are required where another argument is missing.
    parser.add_argument("overrides", nargs="*", default=[], metavar=metavar, help=help, **options)
