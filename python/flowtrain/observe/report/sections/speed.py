"""Tokens per second and MFU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from flowtrain.observe.report.read import ReportedRun
from flowtrain.observe.report.sections.names import said_of
from flowtrain.observe.report.totals import mfu_of, tokens_per_s
from flowtrain.pages.charts.lines import Line, over_steps
from flowtrain.pages.parts import Figure, Section, percent


def speed(runs: Sequence[ReportedRun]) -> Section:
    """How fast the steps are, also relative to the peak of the devices."""
    timed = [run for run in runs if "seconds" in run.timing]
    findings = [
        said_of(
            run,
            runs,
            f"{tokens_per_s(run):,.0f} tokens/s over {len(run.timing['step']):,} steps, and an MFU "
            f"of {percent(mfu_of(run))} of a peak of {_flops(run.timing['peak_flops'][-1])} for "
            "all ranks together.",
        )
        for run in timed
    ]

    def lines(name: str) -> list[Line]:
        return [Line(run.name, name, run.timing["step"], run.timing[name]) for run in timed]

    figures = []
    if chart := over_steps(lines("tokens_per_s"), "tokens/s"):
        about = (
            "Tokens of a step, without padding, over the time from the update before to its own."
        )
        figures.append(Figure("Tokens per second", about, chart, wide=False))
    if chart := over_steps(lines("mfu"), "MFU", percent=True):
        about = (
            "Model FLOPs utilization: FLOPs of the model for real tokens, without recomputation "
            "and with half of causal attention, over time x peak of all ranks."
        )
        figures.append(Figure("MFU", about, chart, wide=False))
    missing = [] if figures else ["Speed: timing.jsonl has no step; a loop of your own logs none."]
    if any(len(numpy.unique(run.timing["peak_flops"])) > 1 for run in timed):
        findings.append("The peak changed where a run was resumed; MFU is of that of each step.")
    if timed:
        missing.append(
            "MFU of encoder and backbone apart: a run logs the FLOPs of both modules together."
        )
    return Section("Speed", "docs/report.md#speed", findings, figures, missing)


def _flops(peak: float) -> str:
    for unit in ("FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s"):
        if peak < 1000:
            return f"{peak:.4g} {unit}"
        peak /= 1000
    return f"{peak:.4g} PFLOP/s"
