"""The layout of a run, why it has it, and what was planned beside what was measured."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

import numpy

from flowtrain.config.layout import MODULES
from flowtrain.events import ACTIVITY_OF_MODULE
from flowtrain.observe.report.read import ReportedRun
from flowtrain.observe.report.sections.names import of, said_of
from flowtrain.observe.report.totals import mfu_of, peak_memory, tokens_per_s
from flowtrain.pages.parts import Figure, Section, Table, duration, percent, size
from flowtrain.plan.plan_file import PlanFile

_MAX_OFF = 1.5
"""A larger factor between estimate and measurement is said."""


def layout(runs: Sequence[ReportedRun]) -> Section:
    """Whether another layout would be faster."""
    findings, figures, missing = [], [], []
    for run in runs:
        findings.append(said_of(run, runs, _finding(run)))
        if run.choice is None and run.plan is None:
            missing.append(
                f"Other layouts{of(run, runs)}: none was estimated, as the run was given its "
                "layout. Without flow.ranks, flow.encoder_ranks and flow.backbone_ranks, a run "
                "chooses one from estimates. Or train a few steps in another layout, and compare: "
                f"`flowtrain report {shlex.quote(str(run.folder))} RUN2`."
            )
        if run.plan is None:
            missing.append(f"Plan{of(run, runs)}: the run was not started with --plan.")
            continue
        about = (
            "What the plan of `flowtrain train --plan` expects, beside the mean over the steps of "
            "the run. Memory is that of the rank with the most: planned, what a module takes of "
            "its device; measured, all that the rank took."
        )
        table = Table(("", "planned", "measured"), list(_beside(run, run.plan)))
        figures.append(Figure(f"Plan and run{of(run, runs)}", about, table))
    return Section("Layout", "docs/report.md#layout", findings, figures, missing)


def step_s(run: ReportedRun) -> float | None:
    """Median seconds of a step; None without steps."""
    return float(numpy.median(run.timing["seconds"])) if "seconds" in run.timing else None


def _finding(run: ReportedRun) -> str:
    flow = run.config.flow
    text = f"layout {flow.rank_layout}, flow.mode {flow.mode}"
    for module in MODULES:
        own = run.config.parallel.of(module)
        text += f", {module} {own.sharding}"
        if own.recompute != "none":
            text += f" with recompute {own.recompute}"
    measured = "" if (now := step_s(run)) is None else f" Measured: {duration(now)}, the median."
    measured += _matched(run)
    chosen = run.choice
    if chosen is None:
        given = "the run" if run.plan is None else "its plan"
        return f"{text}: given by {given}.{measured}"
    text += (
        f": chosen, with an estimate of {duration(chosen.step_s)} a step on {chosen.where}, from "
        f"{chosen.source}."
    )
    if chosen.next_best is not None and chosen.next_best_s is not None:
        slower = chosen.next_best_s / chosen.step_s - 1
        text += (
            f" The next best, {chosen.next_best}, was estimated at "
            f"{duration(chosen.next_best_s)}: {percent(slower)} slower."
        )
    if now is not None:
        off = max(now / chosen.step_s, chosen.step_s / now)
        if off > _MAX_OFF:
            measured += (
                f" The estimate is off by a factor of {off:.1f}: measure the next best, too."
            )
    return text + measured


def _matched(run: ReportedRun) -> str:
    """Whether decoupled modules have as many ranks as they have work; empty if they share ranks."""
    layout = run.config.flow.rank_layout
    spent = {
        module: sum(account.seconds.get(kind, 0.0) for account in run.accounts.values())
        for module, kind in ACTIVITY_OF_MODULE.items()
    }
    if layout is None or layout.colocated or not all(spent.values()):
        return ""
    work = spent["encoder"] / sum(spent.values())
    ranks = layout.encoder_ranks / (layout.encoder_ranks + layout.backbone_ranks)
    return (
        f" Of the time that ranks spent in passes, the encoder took {percent(work)}, and it has "
        f"{percent(ranks)} of the ranks."
    )


def _beside(run: ReportedRun, file: PlanFile) -> Iterator[tuple[str, str, str]]:
    plan = file.plan
    planned_s = plan.step_s if plan.simulated_s is None else plan.simulated_s
    timed = "seconds" in run.timing
    seconds = float(run.timing["seconds"].mean()) if timed else None
    yield "Step", duration(planned_s), "-" if seconds is None else duration(seconds)
    speed = f"{tokens_per_s(run):,.0f}" if timed else "-"
    yield "Tokens/s", f"{plan.tokens / planned_s:,.0f}", speed
    planned_mfu = plan.mfu * plan.step_s / planned_s
    yield "MFU", percent(planned_mfu), percent(mfu_of(run) if timed else None)
    tokens = f"{run.timing['tokens'].mean():,.0f}" if timed else "-"
    yield "Tokens of a step", f"{plan.tokens:,.0f}", tokens
    rows = f"{run.lengths.rows.mean():,.0f}" if len(run.lengths.rows) else "-"
    yield "Tokens of a microbatch", f"{plan.mean_tokens:,.0f}", rows
    pool = run.timing["pool_bytes"].max() if timed else None
    yield "Pool", size(plan.pool_bytes), "-" if pool is None else size(float(pool))
    for module in plan.modules:
        memory = module.memory[module.fullest]
        limit = size(module.memory_bytes)
        peak = peak_memory(run, (module.module, "colocated"))
        yield (
            f"Memory of a rank of the {module.module}",
            f"{size(memory.total)} of {limit}",
            "-" if peak is None else f"{size(peak[1])} {peak[2]}",
        )
