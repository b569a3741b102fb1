"""Answers of the model to held-out samples."""

from __future__ import annotations

from collections.abc import Sequence

from flowtrain.observe.report.read import ReportedRun
from flowtrain.observe.report.sections.names import of, said_of
from flowtrain.observe.strips import caption
from flowtrain.pages import Figure, Picture, Pictures, Section


def answers(runs: Sequence[ReportedRun]) -> Section:
    """Texts that the model has read in held-out images, of runs that have them."""
    findings, figures = [], []
    for run in runs:
        if not run.strips:
            continue
        right = sum(strip.expected == strip.read for strip in run.strips)
        text = f"{right} of the {len(run.strips)} held-out strips below were read without an error."
        findings.append(said_of(run, runs, text))
        shown = [Picture(strip.png, caption(strip)) for strip in run.strips]
        about = (
            "Some of the strips on which the trained model was tested, from short to long ones, "
            "with what it read of them by plain Hugging Face."
        )
        figures.append(Figure(f"Held-out strips{of(run, runs)}", about, Pictures(shown)))
    return Section("Answers", "docs/report.md#answers", findings, figures)
