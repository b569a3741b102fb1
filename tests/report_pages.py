"""Pages with charts, read as a program."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any


@dataclass
class Page(HTMLParser):
    """A page: the titles of its parts, its charts, its texts, and what it would fetch."""

    text: str
    titles: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    """Data of each figure by its title; None of a table."""
    findings: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._inside: list[str] = []
        self._said = self._title = ""
        self.charts: list[Any] = []
        self._places: dict[str, int | None] = {}
        self.feed(self.text)
        self.close()
        self.figures = {
            title: None if place is None else self.charts[place]["data"]["values"]
            for title, place in self._places.items()
        }

    @staticmethod
    def read(path: Path) -> Page:
        return Page(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.fetched += [v or "" for k, v in attrs if k in ("src", "href", "srcset", "action")]
        if tag in ("meta", "img"):  # They have no end.
            return
        self._inside.append(given.get("class") or given.get("id") or tag)
        self._said = ""
        if "data-chart" in given:
            self._places[self._title] = int(given["data-chart"] or "")

    def handle_data(self, data: str) -> None:
        self._said += data

    def handle_endtag(self, tag: str) -> None:
        what = self._inside.pop() if self._inside else ""
        if tag == "h2":
            self.titles.append(self._said)
        elif tag == "h3":
            self._title = self._said
            self._places[self._title] = None
        elif what == "charts":
            self.charts = json.loads(self._said)
        elif what in ("finding", "missing"):
            (self.findings if what == "finding" else self.missing).append(self._said)
