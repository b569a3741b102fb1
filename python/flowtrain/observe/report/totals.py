"""Figures of a whole run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy

from flowtrain.config.layout import MODULES, ModuleName
from flowtrain.events import MemoryKind, busy
from flowtrain.observe.report.read import ReportedRun
from flowtrain.pages.parts import duration, percent, size


def tokens_per_s(run: ReportedRun) -> float:
    """Tokens over time of all steps that are logged."""
    return float(run.timing["tokens"].sum() / run.timing["seconds"].sum())


def mfu_of(run: ReportedRun) -> float:
    """MFU of all steps that are logged: mean over their time."""
    seconds = run.timing["seconds"]
    return float((run.timing["mfu"] * seconds).sum() / seconds.sum())


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleTotals:
    """Speed of a module in all steps that are logged."""

    share: float
    """Share of the model FLOPs."""
    peak_flops: float
    """Peak FLOP/s of the ranks that hold it, at last."""
    mfu: float
    """FLOPs over time x peak of these ranks: mean over the time of the steps, as `mfu_of`."""
    pass_mfu: float | None
    """The same over the time in passes of the module; None if the run does not log it."""
    in_passes: float | None
    """Share of the time of these ranks in passes of the module."""


def module_totals(run: ReportedRun, module: ModuleName) -> ModuleTotals | None:
    """Speed of a module; None if the run does not log it, or has nothing for it to compute."""
    timing = run.timing
    flops = timing.get(f"{module} flops", numpy.empty(0))
    total = numpy.nansum([timing[f"{each} flops"] for each in MODULES]) if len(flops) else 0.0
    if not total or not numpy.nansum(flops):
        return None
    peaks = timing[f"{module} peak_flops"]
    # Seconds that the FLOPs of each step take at the peak, which may change where a run is resumed.
    at_peak_s = flops / peaks
    speeds = timing.get(f"{module} pass_mfu", numpy.full(len(flops), numpy.nan))
    known = speeds > 0
    passes_s = (at_peak_s[known] / speeds[known]).sum()
    pass_mfu = float(at_peak_s[known].sum() / passes_s) if passes_s else None
    mfu = float(numpy.nansum(at_peak_s) / timing["seconds"][numpy.isfinite(peaks)].sum())
    return ModuleTotals(
        share=float(numpy.nansum(flops) / total),
        peak_flops=float(peaks[numpy.isfinite(peaks)][-1]),
        mfu=mfu,
        pass_mfu=pass_mfu,
        in_passes=mfu / pass_mfu if pass_mfu else None,
    )


def peak_memory(run: ReportedRun, worlds: Collection[str] = ()) -> tuple[str, int, str] | None:
    """The rank with the most memory, its bytes, and of what they are; None if none is logged.

    Args:
        run: The run.
        worlds: Of ranks of these worlds; of all without any.
    """
    kinds: tuple[tuple[MemoryKind, str], ...]
    kinds = ("allocated", "allocated on its GPU"), ("resident", "resident")
    for kind, said in kinds:
        found = [
            (label, sizes[kind], said)
            for label, sizes in run.memory.items()
            if kind in sizes and (not worlds or label.rpartition(".")[0] in worlds)
        ]
        if found:
            return max(found, key=lambda each: each[1])
    return None


def bubble_ratio(run: ReportedRun) -> float | None:
    """1 - busy, of the time of all ranks in the last attempt; None without events."""
    totals = [sum(account.seconds.values()) for account in run.accounts.values()]
    if not totals:
        return None
    works = [
        total * busy(account.seconds)
        for total, account in zip(totals, run.accounts.values(), strict=True)
    ]
    return 1 - sum(works) / sum(totals)


def key_figures(run: ReportedRun) -> dict[str, str]:
    """Figures of a run by name, as texts; those that it lacks are dashes."""
    steps, timing = run.metrics, run.timing
    layout = run.config.flow.rank_layout
    done, evaluated = len(steps["step"]), len(run.evaluations["step"])
    timed = "seconds" in timing
    return {
        "Layout": f"{layout}" if layout is not None else "-",
        "Mode": run.config.flow.mode,
        "Steps": f"{done:,} of {run.config.train.steps:,}" if done else "-",
        "Time": duration(float(timing["seconds"].sum())) if timed else "-",
        "Loss": f"{steps['loss'][-1]:.4g}" if done else "-",
        "Held-out loss": f"{run.evaluations['loss'][-1]:.4g}" if evaluated else "-",
        "Tokens/s": f"{tokens_per_s(run):,.0f}" if timed else "-",
        "MFU": percent(mfu_of(run)) if timed else "-",
        "MFU: encoder, backbone": _by_module(run),
        "Bubble ratio": percent(bubble_ratio(run)),
        "Pad ratio": _before_after(run, "pad_ratio"),
        "Dist ratio": _before_after(run, "dist_ratio"),
        "Peak memory of a rank": "-" if (peak := peak_memory(run)) is None else size(peak[1]),
    }


def _by_module(run: ReportedRun) -> str:
    totals = [module_totals(run, module) for module in MODULES]
    if not any(totals):
        return "-"
    return ", ".join(percent(None if each is None else each.mfu) for each in totals)


def _before_after(run: ReportedRun, name: str) -> str:
    before, after = run.mean(f"arrival {name}"), run.mean(f"packed {name}")
    return "-" if after is None else f"{percent(before)} \N{RIGHTWARDS ARROW} {percent(after)}"
