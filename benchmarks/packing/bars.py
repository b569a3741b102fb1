"""What a figure is held against."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from packing.rows import Row, grouped, median


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A value, and what it may be at most; at least, if so said. No value does not reach it."""

    name: str
    value: float | None
    bar: float
    at_least: bool = False
    where: str = ""

    @property
    def met(self) -> bool:
        if self.value is None:
            return False
        return self.value >= self.bar if self.at_least else self.value <= self.bar

    def as_dict(self) -> dict[str, Any]:
        known = self.value is not None and math.isfinite(self.value)
        value = float(f"{self.value:.4g}") if known else None
        return {
            "name": self.name,
            "value": value,
            "bar": self.bar,
            "met": self.met,
            "where": self.where,
        }

    def __str__(self) -> str:
        value = "null" if self.value is None else f"{self.value:.4g}"
        sign = ">=" if self.at_least else "<="
        return (
            f"{'met' if self.met else 'MISSED':7} {self.name:58} {value:>10} {sign} {self.bar:<6g}"
            f" {self.where}"
        )


def worst_load(
    name: str, rows: Sequence[Row], key: str, bar: float, *, at_least: bool = False
) -> Bar:
    """The load whose median over the seeds is worst."""
    medians = {load: median(seeds, key) for (load,), seeds in grouped(rows, "load").items()}
    load = (min if at_least else max)(medians, key=medians.__getitem__)
    return Bar(name=name, value=medians[load], bar=bar, at_least=at_least, where=load)


def worst_row(name: str, rows: Sequence[Row], key: str, bar: float) -> Bar:
    """The largest of all values, of any seed."""
    row = max(rows, key=lambda row: row[key])
    where = f"{row['load']} seed {row['seed']}"
    return Bar(name=name, value=row[key], bar=bar, where=where)
