"""Table of what the ranks of a run did in its last steps."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from pathlib import Path

from rich.table import Table
from rich.text import Text

from flowtrain.train.state.logs import TIMING

_STEPS = 20
_MIN_SHARE = 0.005


def activity_table(run: Path) -> Table:
    """Shares of the time of each world's ranks, over the last steps, the largest first.

    Args:
        run: Folder of the run.
    """
    worlds = _last_seconds(run)
    table = Table("ranks", "mean over the last steps", box=None)
    for world, seconds in worlds.items():
        total = sum(seconds.values())
        shares = sorted(((s / total, kind) for kind, s in seconds.items()), reverse=True)
        shown = "  ".join(f"{kind} {share:.0%}" for share, kind in shares if share >= _MIN_SHARE)
        table.add_row(Text(world), Text(shown))
    return table


def _last_seconds(run: Path) -> dict[str, dict[str, float]]:
    """Seconds of each kind of activity in each world, over the last steps."""
    worlds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    path = run / TIMING
    if path.exists():
        with path.open() as log:
            lines = deque(log, maxlen=_STEPS)
        # The last line may still be incomplete.
        for line in (line for line in lines if line.endswith("\n")):
            for world, seconds in json.loads(line)["activity_s"].items():
                for kind, spent in seconds.items():
                    worlds[world][kind] += spent
    return worlds
