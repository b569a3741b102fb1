"""Layout, starts and ends, samples and steps that were left out, and corrections."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from flowtrain.cost.slow_shapes import lengths_of
from flowtrain.observe.report.read import ReportedRun
from flowtrain.observe.report.sections.names import of
from flowtrain.observe.report.starts import Start
from flowtrain.pages.charts.lines import Line, over_steps
from flowtrain.pages.parts import Figure, Section, Table

_LEFT_OUT = {
    "skipped_samples": "Skipped samples",
    "dropped_samples": "Dropped samples",
    "truncated_samples": "Truncated samples",
    "skipped_step": "Skipped steps",
}
_MAX_ROWS = 20


def course(runs: Sequence[ReportedRun]) -> Section:
    """What happened to a run."""
    rows = [
        ("How it ended", *(run.state.removeprefix(f"{run.folder}: ") for run in runs)),
        ("Starts", *(str(len(run.starts) or "-") for run in runs)),
        *((title, *(_count(run, name) for run in runs)) for name, title in _LEFT_OUT.items()),
        ("Oldest weights of a record, in steps", *(_count(run, "age", most=True) for run in runs)),
        ("Corrections of costs", *(str(len(run.corrections)) for run in runs)),
    ]
    about = (
        "Starts count resumes, too. Samples are skipped if an image is unreadable, and dropped or "
        "truncated if they exceed a microbatch; `flowtrain data check` names them. A step is "
        "skipped if its loss or norm is not finite (train.nonfinite)."
    )
    figures = [Figure("Course of the run", about, Table(("", *(run.name for run in runs)), rows))]
    lines = [
        Line(run.name, title.lower(), run.metrics["step"], run.metrics[name])
        for run in runs
        for name, title in _LEFT_OUT.items()
        if name in run.metrics and run.metrics[name].any()
    ]
    if chart := over_steps(lines, "in a step", height=160):
        figures.append(Figure("Left out", "Samples, and steps, that were left out.", chart))
    for run in runs:
        if len(run.starts) > 1:
            table = Table(
                ("start", "began (UTC)", "ranks", "steps", "how it ended"),
                [
                    (str(number), *_of_start(start, is_last=number == len(run.starts)))
                    for number, start in enumerate(run.starts, 1)
                ],
            )
            about = (
                "Starts of the run: how they ended, and the steps that they did, from the events "
                "that are kept. Steps after the last checkpoint are done again."
            )
            figures.append(Figure(f"Starts{of(run, runs)}", about, table))
        if run.corrections:
            table = Table(
                ("from step", "state", "documents of so many tokens: factor"),
                [
                    (
                        str(event.step),
                        event.state,
                        ", ".join(
                            f"{lengths_of(shape)[0]} to {lengths_of(shape)[-1]}: {factor:.2f}"
                            for shape, factor in sorted(event.factors.items())
                        )
                        or "-",
                    )
                    for event in run.corrections[-_MAX_ROWS:]
                ],
            )
            about = (
                "Costs that the planner has learned from measured times (flow.correct), the last "
                f"{_MAX_ROWS} changes."
            )
            figures.append(Figure(f"Corrections{of(run, runs)}", about, table))
    return Section("Course", "docs/report.md#course", (), figures)


def _of_start(start: Start, *, is_last: bool) -> tuple[str, ...]:
    began = start.began.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    steps = f"{start.steps[0]} to {start.steps[-1]}" if start.steps else "-"
    end = start.end or ("see above" if is_last else "-")
    return began, str(start.ranks or "-"), steps, end


def _count(run: ReportedRun, name: str, *, most: bool = False) -> str:
    values = run.metrics.get(name)
    if values is None or not len(values):
        return "-"
    return f"{values.max() if most else values.sum():,.0f}"
