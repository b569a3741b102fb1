"""Plans and quantities in words."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from flowtrain.plan.report.table import table
from flowtrain.plan.result import ModulePlan, Plan

_GIB = 1 << 30

MFU_CONVENTION = "no recomputation, causal attention counted half"
"""Which FLOPs MFU counts."""


def plan_line(plan: Plan) -> str:
    """A plan on one line."""
    modules = [f"{module.module} {_short(module)}" for module in plan.modules]
    line = f"{plan.mode}: {'; '.join(modules)}; {plan.microbatches} x {plan.microbatch_tokens}"
    return line if plan.chunk_slots is None else f"{line}, {plan.chunk_slots} at a time"


def recomputed(module: ModulePlan) -> str:
    """What a module computes again before it runs backward, by stage if stages differ."""
    if module.layout.recompute:
        return "items"
    runs = [(level, len(list(group))) for level, group in groupby(_levels(module))]
    if len(runs) < 2:
        return runs[0][0] if runs else "none"
    return "+".join(f"{count} {level}" for level, count in runs)


def _levels(module: ModulePlan) -> list[str]:
    return [
        stage.recompute
        if stage.recompute_layers is None
        else f"{stage.recompute} of {stage.recompute_layers}"
        for stage in module.layout.stages
    ]


def seconds(value: float) -> str:
    """Seconds with four digits."""
    return f"{value:.4g} s"


def mfu(plan: Plan) -> str:
    """MFU with the time of the step that is shown."""
    return percent(plan.best_mfu)


def num_gpus(count: int) -> str:
    """A number of GPUs."""
    return f"{count} GPU{'' if count == 1 else 's'}"


def milliseconds(value: float) -> str:
    """Seconds in milliseconds; a dash for none."""
    if not value:
        return "-"
    return f"{1e3 * value:.1f}" if value >= 1e-3 else f"{1e3 * value:.3g}"


def percent(share: float) -> str:
    """A share in percent."""
    return f"{100 * share:.1f} %"


def gib(size: float) -> str:
    """Bytes in GiB."""
    return f"{size / _GIB:.2f}" if size else "-"


def _short(module: ModulePlan) -> str:
    layout = module.layout
    words = [str(layout)]
    if layout.sharding != "replicated":
        over = "" if layout.shard_ranks is None else f" over {layout.shard_ranks}"
        words.append(f"shard {layout.sharding}{over}")
    if (again := recomputed(module)) != "none":
        words.append(f"recompute {again}")
    return ", ".join(words)


def left_last(rows: Iterable[tuple[str, ...]], *, left: int = 0) -> list[str]:
    """Lines of a table whose last column begins at the left edge."""
    rows = list(rows)
    if not rows:
        return []
    heads = table([row[:-1] for row in rows], left=left)
    return [f"{head}  {row[-1]}" for head, row in zip(heads, rows, strict=True)]
