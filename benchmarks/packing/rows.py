"""Rows of plain data: part, scale, load, seed, name, and figures or the reason for none."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from packing.cases import Case

Row = dict[str, Any]
_HEAD = ("part", "scale", "load", "name")
_NEVER = ("over", "slots", "age")


class Rows:
    """What was measured, kept in a file where one is given, so that a run goes on in another."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        known = path.read_text().splitlines() if path is not None and path.exists() else []
        self.all: list[Row] = [json.loads(line) for line in known]

    def __contains__(self, case: Case) -> bool:
        keys = asdict(case).items()
        return any(keys <= row.items() for row in self.all)

    def add(self, case: Case, found: Iterable[Row]) -> None:
        """Add all rows of a case at once."""
        new = [{**asdict(case), **row} for row in found]
        self.all += new
        if self._path is not None:
            with self._path.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in new)

    def of(self, part: str, **match: Any) -> list[Row]:
        """Rows with figures."""
        wanted = {"part": part, **match}.items()
        return [row for row in self.all if wanted <= row.items() and "reason" not in row]

    def reasons(self, part: str, **match: Any) -> list[Row]:
        """Rows without."""
        wanted = {"part": part, **match}.items()
        return [row for row in self.all if wanted <= row.items() and "reason" in row]


def grouped(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows that agree in some keys, in the order in which they were measured."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found


def median(rows: Iterable[Row], key: str) -> float:
    """Over seeds."""
    return statistics.median(row[key] for row in rows)


def summary(rows: Iterable[Row]) -> Iterator[Row]:
    """One row for all seeds: medians, but the most of what must never happen."""
    for key, seeds in grouped(rows, *_HEAD).items():
        head = dict(zip(_HEAD, key, strict=True))
        good = [row for row in seeds if "reason" not in row]
        if not good:
            yield {**head, "reason": seeds[0]["reason"]}
            continue
        figures = {
            key: max(row[key] for row in good) if key in _NEVER else round(median(good, key), 5)
            for key in good[0]
            if key not in (*_HEAD, "seed")
        }
        yield {**head, "seeds": len(good), **figures}
