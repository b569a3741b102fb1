"""The parts of a page, as plain data: sections with figures, which are charts or tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from flowtrain.pages.charts.spec import Spec


@dataclass(frozen=True, slots=True)
class Table:
    """Texts in rows; the first cell of each names it."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Picture:
    """An image, with a line below it."""

    png: bytes
    caption: str


@dataclass(frozen=True, slots=True)
class Pictures:
    """Small images, enlarged."""

    shown: Sequence[Picture]


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart, a table, or pictures, with what it means."""

    title: str
    about: str
    """The meaning of the figure, in a sentence or two."""
    content: Spec | Table | Pictures
    wide: bool = True
    """Whether it takes the whole width; two of the others may be side by side."""


@dataclass(frozen=True, slots=True)
class Section:
    """Figures of one subject."""

    title: str
    doc: str
    """Where the documentation says more: a page, or a page and a heading."""
    findings: Sequence[str] = ()
    """Results that the figures show, in sentences."""
    figures: Sequence[Figure] = ()
    missing: Sequence[str] = field(default=())
    """Figures that are left out, with the reason."""


def percent(share: float | None) -> str:
    """A share as text, with a dash if there is none."""
    return "-" if share is None else f"{share:.1%}"


def duration(seconds: float) -> str:
    """A time as text."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.1f} min" if hours < 2 else f"{hours:.1f} h"


def size(count: float) -> str:
    """Bytes as text, in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
