"""Progress of a benchmark, on a terminal."""

from __future__ import annotations

import sys


def show(step: str) -> None:
    """Show the current step on stderr, over the previous one, if stderr is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{step}", end="", file=sys.stderr, flush=True)


def clear() -> None:
    """Clear the line before other output."""
    show("")
