"""Lines about a cache on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable

TOLD = "cache: "
"""Begins each line. Not `flowtrain: `, which the launcher takes for the reason of an end."""
_MAX_LINES = 20


def tell_once() -> Callable[[str], None]:
    """A function that prints each line once, and at most twenty in all: a disk may lose much."""
    told: set[str] = set()

    def tell(line: str) -> None:
        if line in told or len(told) > _MAX_LINES:
            return
        told.add(line)
        if len(told) > _MAX_LINES:
            line = "further lines about the cache are left out"
        print(f"{TOLD}{line}", file=sys.stderr, flush=True)

    return tell
