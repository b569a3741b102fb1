"""Rows of `bench_packing.py`, and what follows from them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from flowtrain_core.packing import Assignment

# A schedule worse by more points than this is not of comparable quality.
_COMPARABLE = 0.5


class Rows:
    """Gap and time of each name, per scale and load, one value a seed; or why there is none."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str, str], list[dict[str, float]]] = {}
        self.missing: dict[tuple[str, str, str], str] = {}

    def add(
        self, name: str, load: str, scale: str, plan: Assignment, ms: float, **more: float
    ) -> None:
        """Add one seed's schedule."""
        self.values.setdefault((scale, load, name), []).append(
            {
                "gap": 100 * plan.gap,
                "ms": ms,
                "over": int((plan.bin_tokens > plan.token_cap).sum()),
                "slots": plan.microbatches,
                "value": plan.value,
                **more,
            }
        )

    def miss(self, name: str, load: str, scale: str, reason: str) -> None:
        """Say why there is none."""
        self.missing[scale, load, name] = reason

    def of(self, scale: str, load: str, name: str) -> list[dict[str, float]]:
        """Its seeds; empty where there are none."""
        return self.values.get((scale, load, name), [])

    def names(self, scale: str, load: str) -> list[str]:
        """All names with values there."""
        return [name for s, where, name in self.values if (s, where) == (scale, load)]

    def print(self) -> None:
        """One line a cell."""
        for (scale, load, name), seeds in self.values.items():
            gaps, times = [s["gap"] for s in seeds], [s["ms"] for s in seeds]
            over, slots = max(s["over"] for s in seeds), max(s["slots"] for s in seeds)
            print(
                f"{scale:12} {load:12} {name:26} gap {statistics.median(gaps):9.4f} %"
                f" worst {max(gaps):9.4f} %  {statistics.median(times):10.3f} ms"
                f"  over {over:4}  slots {slots:3}"
            )
        for (scale, load, name), reason in self.missing.items():
            print(f"{scale:12} {load:12} {name:26} null ({reason})")

    def summary(self) -> list[dict[str, Any]]:
        """All cells, for JSON."""
        found: list[dict[str, Any]] = [
            {
                "scale": scale,
                "load": load,
                "name": name,
                "gap_percent": round(statistics.median(s["gap"] for s in seeds), 4),
                "ms": round(statistics.median(s["ms"] for s in seeds), 3),
                "over_cap": max(s["over"] for s in seeds),
                "slots": max(s["slots"] for s in seeds),
            }
            for (scale, load, name), seeds in self.values.items()
        ]
        found += [
            {"scale": scale, "load": load, "name": name, "gap_percent": None, "reason": reason}
            for (scale, load, name), reason in self.missing.items()
            if (scale, load, name) not in self.values
        ]
        return found


def best_peer(rows: Rows, scale: str, load: str, ours: str) -> Iterator[tuple[float, str, float]]:
    """Per seed: our gap, and name and gap of the best that kept to the cap and to the slots."""
    mine = rows.of(scale, load, ours)
    for seed, own in enumerate(mine):
        best: tuple[float, str] | None = None
        for name in rows.names(scale, load):
            seeds = rows.of(scale, load, name)
            if name == ours or seed >= len(seeds):
                continue
            if seeds[seed]["over"] or seeds[seed]["slots"] > own["slots"]:
                continue
            best = min(best or (seeds[seed]["gap"], name), (seeds[seed]["gap"], name))
        if best is not None:
            yield own["gap"], best[1], best[0]


def least_speedup(
    rows: Rows, scale: str, loads: Sequence[str], ours: str, peers: Sequence[str]
) -> dict[str, Any] | None:
    """The peer of comparable quality that comes nearest to our time, by medians of the seeds."""
    found: list[tuple[float, str, str]] = []
    for load in loads:
        mine = rows.of(scale, load, ours)
        gap = statistics.median(s["gap"] for s in mine)
        for name in rows.names(scale, load):
            seeds = rows.of(scale, load, name)
            theirs = statistics.median(s["gap"] for s in seeds)
            if name not in peers or theirs > gap + _COMPARABLE:
                continue
            ratio = statistics.median(s["ms"] for s in seeds) / statistics.median(
                s["ms"] for s in mine
            )
            found.append((ratio, name, load))
    if not found:
        return None
    ratio, name, load = min(found)
    return {"name": name, "load": load, "times": round(ratio, 1)}
