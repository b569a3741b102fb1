"""Table of what the ranks of a run did in its last steps, of their memory, and of cache hits."""

from __future__ import annotations

import json
import os
from pathlib import Path

from rich.table import Table
from rich.text import Text

from flowtrain.events import MemoryKind, read_memory, read_shares
from flowtrain.observe.top import bytes_text
from flowtrain.train.state.logs import TIMING

_STEPS = 20
_MIN_SHARE = 0.005
_TAIL_BYTES = 1 << 16
_SAID: dict[MemoryKind, str] = {"resident": "resident", "allocated": "on the GPU"}


def activity_table(run: Path) -> Table:
    """Shares of the time of each world's ranks, over the last steps, the largest first.

    Beside them is the memory of its rank with the most, at most so far.

    Args:
        run: Folder of the run.
    """
    worlds, memory = read_shares(run, steps=_STEPS), read_memory(run)
    table = Table("ranks", "mean over the last steps", "peak memory of a rank", box=None)
    for world, seconds in worlds.items():
        total = sum(seconds.values())
        shares = sorted(((s / total, kind) for kind, s in seconds.items()), reverse=True)
        shown = "  ".join(f"{kind} {share:.0%}" for share, kind in shares if share >= _MIN_SHARE)
        own = [found for label, found in memory.items() if label.rpartition(".")[0] == world]
        peaks = ", ".join(
            f"{bytes_text(max(found[kind] for found in own if kind in found))} {said}"
            for kind, said in _SAID.items()
            if any(kind in found for found in own)
        )
        table.add_row(Text(world), Text(shown), peaks or "-")
    if shown := _cache_text(run):
        table.add_row("cache", shown)
    return table


def _cache_text(run: Path) -> str:
    """Hits among the images of the last steps; empty without a cache."""
    try:
        with (run / TIMING).open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - _TAIL_BYTES))
            lines = log.read().splitlines(keepends=True)[-_STEPS - 1 :]
    except FileNotFoundError:
        return ""
    hits = misses = 0
    for line in lines:
        try:
            step = json.loads(line)
            hits, misses = hits + step["cache_hits"], misses + step["cache_misses"]
        except (ValueError, KeyError, TypeError):  # Being written, or without a cache.
            continue
    images = hits + misses
    return f"{hits / images:.1%} of {images:,} images" if images else ""
