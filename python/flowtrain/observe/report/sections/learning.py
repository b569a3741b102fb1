"""Loss, evaluations, gradient norm and learning rate."""

from __future__ import annotations

from collections.abc import Sequence

from flowtrain.observe.report.read import ReportedRun
from flowtrain.observe.report.sections.names import NO_STEP, of
from flowtrain.pages.charts.lines import Line, over_steps
from flowtrain.pages.parts import Figure, Section


def learning(runs: Sequence[ReportedRun]) -> Section:
    """Whether the model learns."""
    lines = [
        Line(run.name, "training", run.metrics["step"], run.metrics["loss"]) for run in _with(runs)
    ]
    lines += [
        Line(run.name, "held-out", run.evaluations["step"], run.evaluations["loss"], points=True)
        for run in runs
        if "loss" in run.evaluations
    ]
    figures, missing = [], []
    if chart := over_steps(lines, "loss", may_be_log=True, height=260):
        about = (
            "Mean loss over the target tokens of each step, and of the held-out samples after the "
            "step. Where steps are binned, the line is the mean and the band goes from the lowest "
            "to the highest."
        )
        figures.append(Figure("Loss", about, chart))
    else:
        missing.append(f"Loss: metrics.jsonl {NO_STEP}.")
    for run in runs:
        if not len(run.evaluations["step"]):
            why = "eval.path and eval.dataset are not set"
            given = run.config.eval.path or run.config.eval.dataset
            missing.append(f"Held-out loss{of(run, runs)}: {'none is due yet' if given else why}.")
    norms = [
        Line(run.name, name, run.metrics["step"], run.metrics[name])
        for run in runs
        for name in run.metrics
        if name == "norm" or name.startswith("norm of ")
    ]
    if chart := over_steps(norms, "gradient norm", may_be_log=True, height=180):
        about = "Norm of the gradients of a step before clipping; peaks are steps to look at."
        figures.append(Figure("Gradient norm", about, chart, wide=False))
    rates = [Line(run.name, "rate", run.metrics["step"], run.metrics["lr"]) for run in _with(runs)]
    if chart := over_steps(rates, "learning rate", height=180):
        about = "Learning rate of the parameters that are in no group of optim.groups."
        figures.append(Figure("Learning rate", about, chart, wide=False))
    return Section("Loss and evaluation", "docs/report.md#loss", (), figures, missing)


def _with(runs: Sequence[ReportedRun]) -> list[ReportedRun]:
    """Runs that have logged a step."""
    return [run for run in runs if "loss" in run.metrics]
