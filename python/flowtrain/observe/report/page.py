"""The page of a report: one HTML file with its data, its styles, and the library of its charts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from flowtrain import __version__
from flowtrain.observe.report.charts.spec import Spec
from flowtrain.observe.report.parts import Figure, Section, Table
from flowtrain.observe.report.read import ReportedRun, read_reported
from flowtrain.observe.report.sections import SECTIONS
from flowtrain.observe.report.totals import key_figures
from flowtrain_core import FlowTrainError

VEGA = "vega.js"
# Vega compiles its expressions. Nothing may be asked of anywhere.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data:"
)


class ReportError(FlowTrainError, RuntimeError):
    """A report cannot be written; the message says why, and what to do."""


def write_report(folders: Sequence[Path], out: Path, *, steps: range | None = None) -> str:
    """Write a page on one run, or on several side by side.

    Args:
        folders: Folders of the runs, which may have ended, have been killed, or be running.
        out: The file to write.
        steps: Steps of the timelines; None takes typical ones.

    Returns:
        What was written, in a line.

    Raises:
        ValueError: A folder is none of a run, or the events of the steps are not kept.
        RunFileError, CheckpointError, EventsError, ConfigError: A file of a run is damaged.
        ReportError: The library of the charts is not installed.
        OSError: The page cannot be written.
    """
    page = page_of(read_reported(folders, steps))
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise OSError(
            f"--out {out}: it cannot be written ({error.strerror or error}); name another file"
        ) from error
    return f"{out}: {len(page.encode()) / 1e6:.1f} MB; open it in a browser"


def page_of(runs: Sequence[ReportedRun]) -> str:
    """The page as text.

    Raises:
        ReportError: The library of the charts is not installed.
    """
    sections = [section(runs) for section in SECTIONS]
    names = ", ".join(run.name for run in runs)
    charts: list[Spec] = []
    body = "".join(_section(section, charts) for section in sections)
    links = "".join(f'<a href="#{_id(s.title)}">{escape(s.title)}</a>' for s in sections)
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{escape(names)}</title><style>{_file('page.css')}</style></head>\n<body>"
        f"<header><h1>{escape(names)}</h1>{_states(runs)}<nav>{links}</nav></header>\n"
        f"<main>{_summary(runs)}{body}</main>\n"
        f"<footer>flowtrain report {escape(__version__)}. docs/report.md says what each figure is; "
        "paths of documentation are those of FlowTrain's repository.</footer>\n"
        f'<script type="application/json" id="charts">{_json(charts)}</script>\n'
        f"<script>{_script(VEGA)}</script>\n<script>{_script('page.js')}</script></body></html>\n"
    )


def _states(runs: Sequence[ReportedRun]) -> str:
    return "".join(
        f"<p><b>{escape(run.name)}</b> {escape(run.state.removeprefix(f'{run.folder}: '))}</p>"
        for run in runs
    )


def _summary(runs: Sequence[ReportedRun]) -> str:
    figures = [key_figures(run) for run in runs]
    if len(runs) == 1:
        cards = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
            for name, value in figures[0].items()
        )
        return f'<dl class="key">{cards}</dl>'
    rows = [(name, *(each[name] for each in figures)) for name in figures[0]]
    return _table(Table(("", *(run.name for run in runs)), rows))


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
    else:
        content = f'<div class="chart" data-chart="{len(charts)}"></div>'
        charts.append(figure.content)
    return (
        f"<figure class='{width}'><figcaption>"
        f"<h3>{escape(figure.title)}</h3><p>{_text(figure.about)} "
        f"<cite>{escape(section.doc)}</cite></p></figcaption>{content}</figure>"
    )


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in table.head)
    rows = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>'
        for first, *others in table.rows
        for cells in ["".join(f"<td>{_text(cell)}</td>" for cell in others)]
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


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
        raise ReportError(
            f"{name}: this FlowTrain was built without the library of the charts; in a checkout, "
            "run: make setup"
        ) from error
