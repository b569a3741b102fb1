"""Figures of a whole run."""

from __future__ import annotations

from flowtrain.events import busy
from flowtrain.observe.report.read import ReportedRun
from flowtrain.pages.parts import duration, percent


def tokens_per_s(run: ReportedRun) -> float:
    """Tokens over time of all steps that are logged."""
    return float(run.timing["tokens"].sum() / run.timing["seconds"].sum())


def mfu_of(run: ReportedRun) -> float:
    """MFU of all steps that are logged."""
    seconds = run.timing["seconds"]
    return float((run.timing["mfu"] * seconds).sum() / seconds.sum())


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
        "Bubble ratio": percent(bubble_ratio(run)),
        "Pad ratio": _before_after(run, "pad_ratio"),
        "Dist ratio": _before_after(run, "dist_ratio"),
    }


def _before_after(run: ReportedRun, name: str) -> str:
    before, after = run.mean(f"arrival {name}"), run.mean(f"packed {name}")
    return "-" if after is None else f"{percent(before)} \N{RIGHTWARDS ARROW} {percent(after)}"
