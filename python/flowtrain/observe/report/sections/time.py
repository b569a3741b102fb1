"""Where the time of the ranks went, who waited for whom, and some steps in detail."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import numpy

from flowtrain.events import busy
from flowtrain.observe.report.charts.ranks import (
    shares_of_time,
    shares_over_steps,
    timeline,
    wait_matrix,
)
from flowtrain.observe.report.groups import BUSY, grouped
from flowtrain.observe.report.read import ReportedRun
from flowtrain.observe.report.sections.names import of, said_of
from flowtrain.observe.report.totals import bubble_ratio
from flowtrain.observe.report.waits import OTHERS, PLANNER
from flowtrain.pages.charts.lines import Line, over_steps
from flowtrain.pages.parts import Figure, Section, percent

_MIN_SHARE = 0.02
_MAX_NAMED = 8
_NO_EVENTS = "no rank has begun to train, or the folder events is gone"


def time_of_ranks(runs: Sequence[ReportedRun]) -> Section:
    """Wall-clock of each rank by activity."""
    findings, figures, missing = [], [], []
    for run in runs:
        if not run.accounts:
            missing.append(f"Time of the ranks{of(run, runs)}: {_NO_EVENTS}.")
            continue
        bubbles = {label: 1 - busy(each.seconds) for label, each in run.accounts.items()}
        shown = list(bubbles)
        if len(shown) > _MAX_NAMED:
            shown = [f(bubbles, key=lambda label: bubbles[label]) for f in (min, max)]
        named = (" to " if len(bubbles) > _MAX_NAMED else ", ").join(
            f"{label} {percent(bubbles[label])}" for label in shown
        )
        text = f"bubble ratio {percent(bubble_ratio(run))} ({named})."
        findings.append(said_of(run, runs, text))
    prefix = {run.name: f"{run.name}: " if len(runs) > 1 else "" for run in runs}
    seconds = {
        f"{prefix[run.name]}{label}": grouped(account.seconds)
        for run in runs
        for label, account in run.accounts.items()
    }
    if seconds:
        about = (
            "Wall-clock of each rank from its first step to the end of its last one, in the last "
            "start of the run. Bubble ratio: 1 - busy, where busy is the share of encoder passes, "
            "backbone passes and optimizer, which a plain loop has, too."
        )
        figures.append(Figure("Where the time went", about, shares_of_time(seconds)))
    worlds = [
        (run, world)
        for run in runs
        for world in dict.fromkeys(name.partition("/")[0] for name in run.timing if "/" in name)
    ]
    if len(runs) == 1:
        for run, world in worlds:
            if chart := shares_over_steps(run.timing, world):
                about = f"The same over the steps, in the mean over the {world} ranks."
                figures.append(
                    Figure(f"Course: {world} ranks", about, chart, wide=len(worlds) == 1)
                )
    else:
        lines = [_bubble_line(run, world) for run, world in worlds]
        if chart := over_steps(lines, "bubble ratio", percent=True):
            about = "1 - busy over the steps, in the mean over the ranks of a world."
            figures.append(Figure("Bubble ratio over the steps", about, chart))
    return Section(
        "Time of the ranks", "docs/report.md#time-of-the-ranks", findings, figures, missing
    )


def _bubble_line(run: ReportedRun, world: str) -> Line:
    names = [name for name in run.timing if name.startswith(f"{world}/")]
    total = numpy.nansum([run.timing[name] for name in names], axis=0)
    work = [run.timing[name] for name in names if name.partition("/")[2] in BUSY]
    share = numpy.nansum(work, axis=0) / numpy.where(total > 0, total, numpy.nan)
    return Line(run.name, f"{world} ranks", run.timing["step"], 1 - share)


def waiting(runs: Sequence[ReportedRun]) -> Section:
    """Who waited for whom."""
    findings, figures, missing = [], [], []
    for run in runs:
        waits = run.waits
        if waits is None:
            missing.append(f"Waits{of(run, runs)}: {_NO_EVENTS}.")
            continue
        longest = sorted(waits.waited.items(), key=lambda item: -item[1])
        shown = [
            f"{rank} waited for {'the ' * (other == PLANNER)}{other} "
            f"{percent(seconds / waits.seconds)} of its time"
            for (rank, other), seconds in longest[:3]
            if seconds / waits.seconds >= _MIN_SHARE and other != OTHERS
        ]
        text = "; ".join(shown) or "no rank waited 2 % of its time for another one"
        findings.append(said_of(run, runs, f"{text}."))
        about = (
            f"Share of its time that the rank of a row waited for that of a column, in the last "
            f"{waits.steps} steps. Where ranks meet (gradient sums, reports of a step), it counts "
            "for the one that came last. planner: plans, texts and samples; others: the time of a "
            "meeting itself, and checkpoints."
        )
        figures.append(
            Figure(
                f"Waits between ranks{of(run, runs)}",
                about,
                wait_matrix(waits),
                wide=len(waits.ranks) > 4,
            )
        )
    return Section("Waits", "docs/report.md#waits", findings, figures, missing)


def steps_in_time(runs: Sequence[ReportedRun]) -> Section:
    """Timelines."""
    figures, missing = [], []
    for run in runs:
        if (shown := run.timeline) is None:
            missing.append(f"Timeline{of(run, runs)}: no events of a whole step.")
            continue
        first, last = shown.steps.start, shown.steps.stop - 1
        steps = f"step {first}" if first == last else f"steps {first} to {last}"
        trace = f"flowtrain trace {shlex.quote(str(run.folder))}"
        about = (
            f"What each rank did in {steps}; events below {shown.shortest_ms:.2g} ms are left out. "
            f"`{trace}` writes all of them for ui.perfetto.dev."
        )
        figures.append(Figure(f"Timeline{of(run, runs)}", about, timeline(shown)))
    return Section("Some steps in detail", "docs/report.md#timeline", (), figures, missing)
