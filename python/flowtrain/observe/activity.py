"""Table of what the ranks of a run did in its last steps."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table
from rich.text import Text

from flowtrain.events import read_shares

_STEPS = 20
_MIN_SHARE = 0.005


def activity_table(run: Path) -> Table:
    """Shares of the time of each world's ranks, over the last steps, the largest first.

    Args:
        run: Folder of the run.
    """
    worlds = read_shares(run, steps=_STEPS)
    table = Table("ranks", "mean over the last steps", box=None)
    for world, seconds in worlds.items():
        total = sum(seconds.values())
        shares = sorted(((s / total, kind) for kind, s in seconds.items()), reverse=True)
        shown = "  ".join(f"{kind} {share:.0%}" for share, kind in shares if share >= _MIN_SHARE)
        table.add_row(Text(world), Text(shown))
    return table
