"""A page: one HTML file with its data, its styles, and the library of its charts."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from flowtrain import __version__
from flowtrain.pages.charts.spec import Spec
from flowtrain.pages.parts import Figure, Pictures, Section, Table
from flowtrain_core import FlowTrainError

VEGA = "vega.js"
_LONG = 60  # Letters of a cell that is given more space.
# Vega compiles its expressions. Nothing may be asked of anywhere.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data:"
)


class PageError(FlowTrainError, RuntimeError):
    """A page cannot be written; the message says why, and what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """All that a page says."""

    title: str
    subjects: Sequence[tuple[str, str]]
    """What the page is about: names, each with a sentence."""
    key: Mapping[str, str] | Table
    """The most important figures."""
    sections: Sequence[Section]
    command: str
    """The command that writes such pages."""
    doc: str
    """Where the documentation says what the figures are."""


def write_page(page: Page, out: Path, *, option: str) -> str:
    """Write a page.

    Args:
        page: The page.
        out: The file to write.
        option: The option of the command line that names the file.

    Returns:
        What was written, in a line.

    Raises:
        PageError: The library of the charts is not installed.
        OSError: The page cannot be written.
    """
    text = html_of(page)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OSError(
            f"{option} {out}: it cannot be written ({error.strerror or error}); name another file"
        ) from error
    return f"{out}: {len(text.encode()) / 1e6:.1f} MB; open it in a browser"


def html_of(page: Page) -> str:
    """The page as HTML.

    Raises:
        PageError: The library of the charts is not installed.
    """
    charts: list[Spec] = []
    body = "".join(_section(section, charts) for section in page.sections)
    links = "".join(f'<a href="#{_id(s.title)}">{escape(s.title)}</a>' for s in page.sections)
    subjects = "".join(
        f"<p><b>{escape(name)}</b> {_text(said)}</p>" for name, said in page.subjects
    )
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{escape(page.title)}</title><style>{_file('page.css')}</style></head>\n<body>"
        f"<header><h1>{escape(page.title)}</h1>{subjects}<nav>{links}</nav></header>\n"
        f"<main>{_key(page.key)}{body}</main>\n"
        f"<footer>{escape(page.command)} {escape(__version__)}. {escape(page.doc)} says what each "
        "figure is; paths of documentation are those of FlowTrain's repository.</footer>\n"
        f'<script type="application/json" id="charts">{_json(charts)}</script>\n'
        f"<script>{_script(VEGA)}</script>\n<script>{_script('page.js')}</script></body></html>\n"
    )


def _key(figures: Mapping[str, str] | Table) -> str:
    if isinstance(figures, Table):
        return _table(figures)
    cards = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in figures.items()
    )
    return f'<dl class="key">{cards}</dl>'


def _section(section: Section, charts: list[Spec]) -> str:
    parts = [f'<section id="{_id(section.title)}"><h2>{escape(section.title)}</h2>']
    parts += [f'<p class="finding">{_text(each)}</p>' for each in section.findings]
    if section.figures:
        figures = "".join(
            _figure(figure, section, charts, wide=wide)
            for figure, wide in zip(section.figures, _widths(section.figures), strict=True)
        )
        parts.append(f'<div class="figures">{figures}</div>')
    parts += [f'<p class="missing">{_text(each)}</p>' for each in section.missing]
    return "".join([*parts, "</section>\n"])


def _widths(figures: Sequence[Figure]) -> Iterator[bool]:
    """Whether each figure is wide: one that has none beside it is, too."""
    after_half = False
    for number, figure in enumerate(figures, 1):
        alone = not after_half and (number == len(figures) or figures[number].wide)
        wide = figure.wide or alone
        after_half = not wide and not after_half
        yield wide


def _figure(figure: Figure, section: Section, charts: list[Spec], *, wide: bool) -> str:
    width = "wide" if wide else "half"
    if isinstance(figure.content, Table):
        content = _table(figure.content)
    elif isinstance(figure.content, Pictures):
        content = _pictures(figure.content)
    else:
        content = f'<div class="chart" data-chart="{len(charts)}"></div>'
        charts.append(figure.content)
    return (
        f"<figure class='{width}'><figcaption>"
        f"<h3>{escape(figure.title)}</h3><p>{_text(figure.about)} "
        f"<cite>{escape(section.doc)}</cite></p></figcaption>{content}</figure>"
    )


def _pictures(pictures: Pictures) -> str:
    shown = "".join(
        f'<div><img src="data:image/png;base64,{b64encode(each.png).decode()}" '
        f'alt="{escape(each.caption)}"><span>{_text(each.caption)}</span></div>'
        for each in pictures.shown
    )
    return f'<div class="pictures">{shown}</div>'


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.head)
    rows = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>'
        for first, *others in table.rows
        for cells in ["".join(map(_cell, others))]
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    long = " class='long'" if len(text) > _LONG else ""
    return f"<td{long}>{_text(text)}</td>"


def _text(text: str) -> str:
    """Text as HTML, with what is between backticks as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if n % 2 else part for n, part in enumerate(parts))


def _id(title: str) -> str:
    return title.lower().replace(" ", "-")


def _json(value: Any) -> str:
    """JSON that no HTML parser takes for the end of the script."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")


def _script(name: str) -> str:
    return _file(name).replace("</script", "<\\/script")


def _file(name: str) -> str:
    try:
        return files(__package__).joinpath(name).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise PageError(
            f"{name}: this FlowTrain was built without the library of the charts; in a checkout, "
            "run: make setup"
        ) from error
