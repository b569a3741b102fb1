"""Table of what the ranks of a run did in its last steps, and of their memory."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table
from rich.text import Text

from flowtrain.events import MemoryKind, read_memory, read_shares
from flowtrain.observe.top import bytes_text

_STEPS = 20
_MIN_SHARE = 0.005
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
    return table
