"""What a benchmark is at, for who watches it."""

from __future__ import annotations

import sys


def show(what: str) -> None:
    """Name the step on stderr, in place of the one before; nothing where that is no terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)


def clear() -> None:
    """Remove it, before something else is printed."""
    show("")
