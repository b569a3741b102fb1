"""What packing made of the samples."""

from __future__ import annotations

from collections.abc import Sequence

from flowtrain.observe.report.read import ReportedRun
from flowtrain.observe.report.sections.names import NO_STEP, of, said_of
from flowtrain.pages.charts.histogram import histogram
from flowtrain.pages.charts.lines import Line, over_steps
from flowtrain.pages.parts import Figure, Section, percent

_RATIOS = {
    "pad_ratio": (
        "Pad ratio",
        "Padding over allocated tokens: in arrival order each sample is padded to the longest of "
        "its microbatch, packed each slot to its longest rank.",
    ),
    "dist_ratio": (
        "Dist ratio",
        "1 - mean / max over the ranks with the backbone, of the cost of a step: the share of the "
        "step that the mean rank would wait for the slowest.",
    ),
    "encoder_dist_ratio": (
        "Dist ratio of the encoder",
        "The same for the encoder ranks, by rows of image features.",
    ),
}
_WHEN = {"arrival": "arrival order", "packed": "packed"}


def packing(runs: Sequence[ReportedRun]) -> Section:
    """Whether packing helped."""
    packed = [run for run in runs if run.mean("packed pad_ratio") is not None]
    figures, missing = [], []
    for name, (title, about) in _RATIOS.items():
        lines = [
            Line(run.name, said, run.metrics["step"], run.metrics[f"{when} {name}"])
            for run in packed
            for when, said in _WHEN.items()
        ]
        if packed and not any(line.values.any() for line in lines):
            missing.append(f"{title}: 0 in every step, also in arrival order.")
        elif chart := over_steps(lines, title.lower(), percent=True, height=180):
            figures.append(Figure(title, about, chart, wide=False))
    if not packed:
        missing.append(f"Packing ratios: metrics.jsonl {NO_STEP}.")
    for run in runs:
        tokens, limit = run.lengths, run.config.train.microbatch_tokens
        if not len(tokens.samples):
            missing.append(f"Lengths{of(run, runs)}: plan.log has no plan.")
            continue
        lengths = {"all tokens": tokens.samples}
        if tokens.images.any():
            lengths["image tokens"] = tokens.images
        about = f"Tokens of the samples of {tokens.steps} planned steps, and of their images alone."
        chart = histogram(lengths, title="tokens of a sample")
        figures.append(Figure(f"Samples{of(run, runs)}", about, chart, wide=False))
        fill = tokens.rows.mean() / limit
        about = (
            f"Tokens of the rows that they became: in the mean {fill:.0%} of the dashed line, "
            f"train.microbatch_tokens = {limit:,}, up to which no row is padded."
        )
        chart = histogram({"rows": tokens.rows}, title="tokens of a packed row", limit=limit)
        figures.append(Figure(f"Packed rows{of(run, runs)}", about, chart, wide=False))
    findings = [said_of(run, runs, _finding(run)) for run in packed]
    return Section("Packing", "docs/report.md#packing", findings, figures, missing)


def _finding(run: ReportedRun) -> str:
    before, after = run.mean("arrival pad_ratio"), run.mean("packed pad_ratio")
    slow, balanced = run.mean("arrival dist_ratio"), run.mean("packed dist_ratio")
    assert before is not None and after is not None
    times = (1 - after) / (1 - before) if before < 1 else float("inf")
    text = (
        f"padding {percent(before)} in arrival order, {percent(after)} packed: in "
        f"arrival order the rows would be {times:.2f} times as long."
    )
    if slow or balanced:  # There are several ranks with the backbone.
        text += (
            f" Ranks with the backbone would wait {percent(slow)} of a step for the slowest, and "
            f"packed {percent(balanced)}; no schedule is more than {percent(run.mean('gap'))} "
            "better."
        )
    return text
