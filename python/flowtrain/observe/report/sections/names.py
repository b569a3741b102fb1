"""Words that several sections use: names of runs, and why a log is empty."""

from __future__ import annotations

from collections.abc import Sequence

from flowtrain.observe.report.read import ReportedRun

NO_STEP = "has no step: none has ended yet, or the loop is one of your own, which logs none"


def said_of(run: ReportedRun, runs: Sequence[ReportedRun], text: str) -> str:
    """A sentence on one of the runs."""
    if len(runs) > 1:
        return f"{run.name}: {text}"
    # Names of ranks stay as they are.
    return text if "." in text.split()[0] else text[0].upper() + text[1:]


def of(run: ReportedRun, runs: Sequence[ReportedRun]) -> str:
    """What follows the title of a figure that is of one run alone."""
    return "" if len(runs) == 1 else f" of {run.name}"
