"""Tokens per second, and MFU of all and of each module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy

from flowtrain.config.layout import MODULES, ModuleName
from flowtrain.observe.report.charts.colors import COLORS
from flowtrain.observe.report.read import ReportedRun
from flowtrain.observe.report.sections.names import NO_STEP, of, said_of
from flowtrain.observe.report.totals import (
    ModuleTotals,
    mfu_of,
    module_totals,
    tokens_per_s,
)
from flowtrain.pages.charts.lines import Line, over_steps
from flowtrain.pages.parts import Figure, Section, Table, percent

_COLORS = {
    "all ranks": "#d9661f",
    "encoder": COLORS["encoder passes"],
    "backbone": COLORS["backbone passes"],
}


def speed(runs: Sequence[ReportedRun]) -> Section:
    """How fast the steps are, also relative to the peak of the devices."""
    timed = [run for run in runs if "seconds" in run.timing]
    findings = [said_of(run, runs, _finding(run)) for run in timed]
    if len(timed) > 1:
        fastest = max(timed, key=tokens_per_s)
        others = [
            f"{tokens_per_s(fastest) / tokens_per_s(run):.2f} times that of {run.name}"
            for run in timed
            if run is not fastest
        ]
        findings.append(f"{fastest.name} has the highest speed: {', '.join(others)}.")
    figures = []
    lines = [
        Line(run.name, "tokens/s", run.timing["step"], run.timing["tokens_per_s"]) for run in timed
    ]
    if chart := over_steps(lines, "tokens/s"):
        about = (
            "Tokens of a step, without padding, over the time from the update before to its own."
        )
        figures.append(Figure("Tokens per second", about, chart, wide=False))
    lines = [Line(run.name, "all ranks", run.timing["step"], run.timing["mfu"]) for run in timed]
    if chart := over_steps(
        [*lines, *_of_modules(timed, "mfu")], "MFU", percent=True, colors=_COLORS
    ):
        about = (
            "Model FLOPs utilization: FLOPs of the model for real tokens, without recomputation "
            "and with half of causal attention, over time x peak of all ranks. Of a module: its "
            "FLOPs over time x peak of the ranks that hold it."
        )
        figures.append(Figure("MFU", about, chart, wide=False))
    if chart := over_steps(
        list(_of_modules(timed, "pass_mfu")), "MFU in passes", percent=True, colors=_COLORS
    ):
        about = (
            "FLOPs of a module over the time that its ranks spent in its passes x their peak: how "
            "fast the passes are, without waits and all else. Recomputation is time in passes."
        )
        figures.append(Figure("MFU in passes", about, chart, wide=False))
    missing = [] if figures else [f"Speed: timing.jsonl {NO_STEP}."]
    totals = {(run.name, m): f for run in timed for m in MODULES if (f := module_totals(run, m))}
    if totals:
        figures.append(_modules(totals, several=len(runs) > 1))
    for run in timed:
        own = [found for (name, _), found in totals.items() if name == run.name]
        if not own:
            missing.append(
                f"MFU of encoder and backbone apart{of(run, runs)}: an older FlowTrain has trained "
                "the run."
            )
        elif any(found.pass_mfu is None for found in own):
            missing.append(
                f"MFU in passes of the encoder{of(run, runs)}: the ranks of a frozen encoder run "
                "ahead, and report no times of steps; the time of the ranks has their passes."
            )
    if any(len(numpy.unique(run.timing["peak_flops"])) > 1 for run in timed):
        findings.append("The peak changed where a run was resumed; MFU is of that of each step.")
    for run in timed:
        if before := _worlds_before(run):
            text = f"its first steps had {' and '.join(before)} ranks; the speed is of all steps."
            findings.append(said_of(run, runs, text))
    return Section("Speed", "docs/report.md#speed", findings, figures, missing)


def _modules(totals: Mapping[tuple[str, ModuleName], ModuleTotals], *, several: bool) -> Figure:
    """Speed of the modules of each run, by name of run and module."""
    about = (
        "Of all steps. MFU is the share of time in passes x the MFU in them. Of decoupled modules, "
        "the one with more of the peak than of the FLOPs has many ranks, or slow passes."
    )
    rows = [
        ("Share of the model FLOPs", *(percent(each.share) for each in totals.values())),
        ("Peak of its ranks", *(_flops(each.peak_flops) for each in totals.values())),
        ("MFU", *(percent(each.mfu) for each in totals.values())),
        ("Share of time in its passes", *(percent(each.in_passes) for each in totals.values())),
        ("MFU in its passes", *(percent(each.pass_mfu) for each in totals.values())),
    ]
    names = [f"{run}: {module}" if several else module for run, module in totals]
    return Figure("Encoder and backbone", about, Table(("", *names), rows), wide=several)


def _finding(run: ReportedRun) -> str:
    steps, peaks = len(run.timing["step"]), run.timing["peak_flops"]
    low, high = _flops(peaks.min()), _flops(peaks.max())
    peak = low if low == high else f"{low} to {high}"
    return (
        f"{tokens_per_s(run):,.0f} tokens/s over {steps:,} step{'s' * (steps > 1)}, and an MFU "
        f"of {percent(mfu_of(run))} of a peak of {peak} for all ranks together."
    )


def _worlds_before(run: ReportedRun) -> list[str]:
    """Worlds that had steps of the run, and are not in its layout any more."""
    layout = run.config.flow.rank_layout
    present = set() if layout is None else {world.name for world in layout.worlds}
    logged = dict.fromkeys(name.partition("/")[0] for name in run.timing if "/" in name)
    return [world for world in logged if world not in present]


def _of_modules(timed: Sequence[ReportedRun], name: str) -> Iterator[Line]:
    for run in timed:
        for module in MODULES:
            if module_totals(run, module) is not None and f"{module} {name}" in run.timing:
                yield Line(run.name, module, run.timing["step"], run.timing[f"{module} {name}"])


def _flops(peak: float) -> str:
    for unit in ("FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s"):
        if peak < 1000:
            return f"{peak:.4g} {unit}"
        peak /= 1000
    return f"{peak:.4g} PFLOP/s"
