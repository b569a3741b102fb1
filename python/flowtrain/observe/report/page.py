"""The page of a report: its sections, of one run or of several side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from flowtrain.observe.report.read import ReportedRun, read_reported
from flowtrain.observe.report.sections import SECTIONS
from flowtrain.observe.report.totals import key_figures
from flowtrain.pages import Page, Table, write_page


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
        PageError: The library of the charts is not installed.
        OSError: The page cannot be written.
    """
    return write_page(page_of(read_reported(folders, steps)), out, option="--out")


def page_of(runs: Sequence[ReportedRun]) -> Page:
    """The page of runs."""
    sections = [section(runs) for section in SECTIONS]
    return Page(
        title=", ".join(run.name for run in runs),
        subjects=[(run.name, run.state.removeprefix(f"{run.folder}: ")) for run in runs],
        key=_key(runs),
        sections=[each for each in sections if each.findings or each.figures or each.missing],
        command="flowtrain report",
        doc="docs/report.md",
    )


def _key(runs: Sequence[ReportedRun]) -> Mapping[str, str] | Table:
    figures = [key_figures(run) for run in runs]
    if len(runs) == 1:
        return figures[0]
    rows = [(name, *(each[name] for each in figures)) for name in figures[0]]
    return Table(("", *(run.name for run in runs)), rows)
