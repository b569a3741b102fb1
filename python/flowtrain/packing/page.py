"""A page that compares policies, with the microbatches of a step before and after."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

from flowtrain.packing.charts import (
    LOST,
    USED,
    Words,
    balanced,
    length,
    picture,
    shown_ranks,
    shown_slots,
)
from flowtrain.packing.compare import Comparison
from flowtrain.packing.table import COLUMNS, cells
from flowtrain.pages import Figure, Page, Section, Table
from flowtrain.pages.charts.bars import divided
from flowtrain.pages.charts.dots import Dot, dots
from flowtrain.pages.charts.histogram import histogram
from flowtrain.workloads import Workload
from flowtrain_core.packing import Assignment

_BEFORE = "arrival"
_DOC = "docs/packing.md"
_COST = Words("computing", "waiting for the slowest rank", "lock-step time; 1 = no rank waits")
_TOKENS = Words("tokens", "padding to the longest rank", "tokens of a rank, in its slots")


def comparison_page(
    work: Workload, steps: Sequence[NDArray[numpy.int64]], rows: Sequence[Comparison], said: str
) -> Page:
    """The page of a comparison.

    Args:
        work: The samples.
        steps: Sample indices of each step.
        rows: The policies, the best first.
        said: What was packed, in a line.
    """
    best = rows[0]
    before = next((row for row in rows if row.policy == _BEFORE), rows[-1])
    shown = [before, best] if before is not best else [best]
    key = {
        "Samples of a step": f"{len(steps[0]):,}",
        "Ranks x slots": f"{best.first.ranks} x {best.microbatches}",
        "Best policy": best.policy,
        "Waiting": _change(before.waiting, best.waiting),
        "Pad ratio": _change(before.pad_ratio, best.pad_ratio),
        "Dist ratio": _change(before.dist_ratio, best.dist_ratio),
        f"Step time in {_name(before)}": f"x {before.step_time / best.step_time:.2f}",
    }
    return Page(
        title=f"Packing of {work.name}",
        subjects=[("samples", said)],
        key=key,
        sections=[
            _policies(rows, before),
            _step(shown),
            _lengths(work, steps, shown),
        ],
        command="flowtrain pack",
        doc=_DOC,
    )


def _change(before: float, after: float) -> str:
    return f"{before:.2%} \N{RIGHTWARDS ARROW} {after:.2%}"


def _name(row: Comparison) -> str:
    return "arrival order" if row.policy == _BEFORE else row.policy


def _policies(rows: Sequence[Comparison], before: Comparison) -> Section:
    best = rows[0]
    findings = [
        f"{best.policy}: ranks wait {best.waiting:.2%} of a step for the slowest of each "
        f"slot, and no schedule is more than {best.gap:.2%} faster in as many slots.",
    ]
    if before is not best:
        findings.append(
            f"In {_name(before)} they wait {before.waiting:.2%}: the step takes "
            f"{before.step_time / best.step_time:.2f} times as long."
        )
    times = {row.policy: {_COST.used: 1.0, "waiting": row.step_time - 1} for row in rows}
    said = {row.policy: f"{row.waiting:.2%} waiting" for row in rows}
    ratios = [
        Dot(row.policy, kind, value)
        for row in rows
        for kind, value in (
            ("pad ratio", row.pad_ratio),
            ("dist ratio", row.dist_ratio),
            ("dist ratio, encoder", row.encoder_dist_ratio),
        )
    ]
    figures = [
        Figure(
            "Time of a step",
            "Time of a step whose ranks meet after each slot, over that of ranks which never wait; "
            "from costs, not measured. The text is the share of the ranks' time that is waiting.",
            divided(times, _COST.axis, said=said, colors={_COST.used: USED, "waiting": LOST}),
        ),
        Figure(
            "Padding and imbalance",
            "Pad ratio: padding over allocated tokens, if each slot were padded to its longest "
            "rank. Dist ratio: 1 - mean / max over the ranks of a slot, of cost. Less is better.",
            dots(ratios, "share", format=".0%"),
        ),
        Figure(
            "All figures",
            "What `flowtrain pack` prints; `flowtrain pack --help` says what the columns are.",
            Table([title for title, _ in COLUMNS.values()], [cells(row) for row in rows]),
        ),
    ]
    return Section("Policies", f"{_DOC}#policies", findings, figures)


def _step(shown: Sequence[Comparison]) -> Section:
    """The first step, in order of arrival and as packed."""
    plans = {_name(row): row.first for row in shown}
    ends = {name: length(plan.loads) / balanced(plan.loads) for name, plan in plans.items()}
    tokens = max(length(plan.bin_tokens) for plan in plans.values())
    figures = []
    for name, plan in plans.items():
        about = (
            "A row for each rank. Each slot ends when its slowest rank has computed it, at the "
            f"lines. {_left_out(plan)}"
        )
        unit, top = balanced(plan.loads), max(ends.values()) * 1.01
        chart = picture(plan, plan.loads, unit=unit, top=top, words=_COST)
        figures.append(Figure(f"The first step in time: {name}", about, chart))
    for name, plan in plans.items():
        about = "Tokens of the same microbatches; padding, if each slot is as long as its longest."
        chart = picture(plan, plan.bin_tokens, unit=1.0, top=tokens * 1.01, words=_TOKENS)
        figures.append(Figure(f"Its tokens: {name}", about, chart))
    return Section("A step before and after", f"{_DOC}#how-a-plan-is-made", (), figures)


def _left_out(plan: Assignment) -> str:
    parts = []
    if (count := len(shown_ranks(plan.ranks))) < plan.ranks:
        parts.append(f"{count} of {plan.ranks} ranks")
    if (count := shown_slots(plan.microbatches)) < plan.microbatches:
        parts.append(f"the first {count} of {plan.microbatches} slots")
    return f"Shown: {' and '.join(parts)}." if parts else ""


def _lengths(
    work: Workload, steps: Sequence[NDArray[numpy.int64]], shown: Sequence[Comparison]
) -> Section:
    used = numpy.concatenate(steps)
    samples = {"all tokens": work.tokens[used]}
    if work.visual_tokens[used].any():
        samples["visual tokens"] = work.visual_tokens[used]
    rows = {
        _name(row): row.first.bin_tokens[row.first.bin_tokens > 0].astype("i8") for row in shown
    }
    limit = shown[-1].first.max_tokens
    figures = [
        Figure(
            "Samples",
            "Tokens of the samples, and of their images alone.",
            histogram(samples, title="tokens of a sample"),
            wide=False,
        ),
        Figure(
            "Microbatches of the first step",
            "Tokens of the microbatches that they became; the dashed line is `--max-tokens` "
            f"{limit:,}.",
            histogram(rows, title="tokens of a microbatch", limit=limit),
            wide=False,
        ),
    ]
    return Section("Lengths", _DOC, (), figures)
