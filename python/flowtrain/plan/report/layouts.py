"""Layouts of plans: that of each module in columns, and which plans differ in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from flowtrain.plan.report.words import milliseconds, recomputed
from flowtrain.plan.result import Plan


def other_layouts(plans: Sequence[Plan]) -> list[Plan]:
    """The plans behind the first one whose layout is not that of one before them.

    With other microbatches, or with fewer GPUs of which others stay idle, it is the same layout.
    """
    found: list[Plan] = []
    for plan in plans:
        if not any(_same_layout(plan, before) for before in found):
            found.append(plan)
    return found[1:]


def _same_layout(plan: Plan, before: Plan) -> bool:
    if (plan.mode, len(plan.modules)) != (before.mode, len(before.modules)):
        return False
    pairs = list(zip(plan.modules, before.modules, strict=True))
    gpus = plan.gpus < before.gpus or all(a.layout.gpus == b.layout.gpus for a, b in pairs)
    return gpus and all(
        (a.gpu_type, replace(a.layout, dp=1, stages=(), recompute=False))
        == (b.gpu_type, replace(b.layout, dp=1, stages=(), recompute=False))
        for a, b in pairs
    )


def layout_rows(plan: Plan) -> list[tuple[str, ...]]:
    """Layout and times of each module, below the names of the columns."""
    head = ("module", "GPUs", "tp", "cp", "pp", "ep", "dp", "sharding", "recompute")
    rows: list[tuple[str, ...]] = [(*head, "microbatch ms", "once ms", "update ms")]
    for module in plan.modules:
        layout = module.layout
        rows.append(
            (
                module.module,
                f"{layout.gpus} {module.gpu_type}",
                *(str(size) for size in (layout.tp, layout.cp, layout.pp, layout.ep, layout.dp)),
                layout.sharding,
                recomputed(module),
                milliseconds(module.microbatch.total),
                milliseconds(module.once.total),
                milliseconds(module.update_s),
            )
        )
    return rows


def microbatch_lines(plan: Plan) -> Iterator[str]:
    """Microbatches of a step, and how many are taken at a time."""
    many = "microbatch" if plan.microbatches == 1 else "microbatches"
    yield (
        f"{plan.microbatches} {many} a replica, of {plan.mean_tokens:.0f} tokens in the mean "
        f"and {plan.microbatch_tokens} at most; update: gradients and optimizer"
    )
    if plan.chunk_slots is not None:
        yield (
            f"{plan.chunk_slots} of these at a time, with both passes of the encoder for what they "
            "read (flow.chunk_slots)"
        )
