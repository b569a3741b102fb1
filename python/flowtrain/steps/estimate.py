"""Estimates the time of a step in a layout, from costs, rates, and plans of sampled steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from flowtrain.config.layout import RankLayout
from flowtrain.cost.flops import Grid
from flowtrain.steps.build import Layout, SampleSize, build_step
from flowtrain.steps.passes import Passes
from flowtrain.steps.step import StepPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Speed of one core or one device.

    Attributes:
        flops: FLOP/s of forward and backward passes.
        memory_bytes: Bytes per second that an optimizer reads and writes.
        reduce_bytes: Bytes per second that a rank sends in an all-reduce.
    """

    flops: float
    memory_bytes: float
    reduce_bytes: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Costs of the steps of a run, and the limits of its plans.

    Attributes:
        steps: Samples of some steps.
        cost: Backbone cost of each sample in forward FLOPs, as `steps`.
        image_cost: Encoder cost of an image in forward FLOPs.
        mode: `flow.mode`.
        recompute: `flow.recompute`.
        trains_backbone: Whether the backbone trains.
        encoder_bytes: Bytes of the encoder's weights.
        backbone_bytes: Bytes of the backbone's weights.
        microbatch_tokens: `train.microbatch_tokens`.
        item_tokens: `flow.item_tokens`.
    """

    steps: Sequence[Sequence[SampleSize]]
    cost: Sequence[Sequence[float]]
    image_cost: Callable[[Grid], float]
    mode: Literal["frozen", "strict", "bounded"]
    recompute: bool
    trains_backbone: bool
    encoder_bytes: float
    backbone_bytes: float
    microbatch_tokens: int
    item_tokens: int

    @property
    def passes(self) -> Passes:
        """Forward and backward of the modules, in forward passes."""
        return Passes.of(self.mode, recompute=self.recompute, trains_backbone=self.trains_backbone)


# Part of a step that each rank too many costs, as a share of the cores or devices: such ranks run
# in turn, with smaller batches. A cautious value: three colocated ranks on two cores took 1.4 to
# 1.5 times as long as two, and this says 1.1.
_CROWDING = 0.2
# An AdamW step reads weight, gradient and two moments, and writes all but the gradient.
_OPTIMIZER_PASSES = 7


def step_seconds(work: Work, layout: RankLayout, rates: Rates, *, workers: int) -> float:
    """Estimated mean seconds of a step.

    Plans of the sampled steps give the load of each rank. A phase lasts as long as its slowest
    rank, and at least its work divided by the cores or devices. Colocated ranks have one phase, and
    decoupled ones too if the encoder need not wait for the close of the step; otherwise the modules
    run one after the other.

    Args:
        work: The run.
        layout: The layout.
        rates: Speed of one core or device.
        workers: Cores or devices, over which the ranks are spread.
    """
    plans = [
        build_step(
            number,
            samples,
            cost,
            Layout(
                encoder_ranks=layout.encoder_ranks,
                backbone_ranks=layout.backbone_ranks,
                colocated=layout.colocated,
                passes=work.passes,
                microbatch_tokens=work.microbatch_tokens,
                item_tokens=work.item_tokens,
            ),
            image_cost=work.image_cost,
            cursor=0,
        )
        for number, (samples, cost) in enumerate(zip(work.steps, work.cost, strict=True))
    ]
    costs = {
        sample.index: cost
        for samples, of_step in zip(work.steps, work.cost, strict=True)
        for sample, cost in zip(samples, of_step, strict=True)
    }
    compute = sum(_compute_seconds(plan, costs, work, layout, rates, workers) for plan in plans)
    seconds = compute / len(plans) + _update_seconds(work, layout, rates, workers)
    surplus = max(0, len(layout.labels) - workers) / workers
    return seconds * (1 + _CROWDING * surplus)


def _compute_seconds(
    plan: StepPlan,
    costs: dict[int, float],
    work: Work,
    layout: RankLayout,
    rates: Rates,
    workers: int,
) -> float:
    passes = work.passes
    encoder = [0.0] * layout.encoder_ranks
    for item in plan.items:
        flops = sum(work.image_cost(image.grid) for image in item.images)
        encoder[item.encoder] += passes.encoder * flops / rates.flops
    backbone = [
        passes.backbone
        / rates.flops
        * sum(costs[document.sample] for slot in rank for document in slot)
        for rank in plan.documents
    ]
    if layout.colocated:
        return _phase([sum(of_rank) for of_rank in zip(encoder, backbone, strict=True)], workers)
    if work.mode == "strict":
        return _phase(encoder, workers) + _phase(backbone, workers)
    return _phase(encoder + backbone, workers)


def _phase(loads: Sequence[float], workers: int) -> float:
    return max(*loads, sum(loads) / workers) if loads else 0.0


def _update_seconds(work: Work, layout: RankLayout, rates: Rates, workers: int) -> float:
    """Seconds of the reductions and the optimizers."""
    trained = {
        "encoder": work.encoder_bytes if work.mode != "frozen" else 0.0,
        "backbone": work.backbone_bytes if work.trains_backbone else 0.0,
    }
    seconds = 0.0
    loads = []
    for world in layout.worlds:
        size = sum(trained[module] for module in world.modules)
        seconds = max(seconds, 2 * size * (world.size - 1) / world.size / rates.reduce_bytes)
        loads += [_OPTIMIZER_PASSES * size / rates.memory_bytes] * world.size
    return seconds + _phase(loads, workers)


def candidates(*, workers: int, max_ranks: int, encoder_share: float) -> list[RankLayout]:
    """Layouts that may be the best.

    Args:
        workers: Cores or devices.
        max_ranks: Maximum ranks in all.
        encoder_share: The encoder's share of the work; decoupled ranks are divided about so.
    """
    totals = sorted({1, min(workers, max_ranks), max_ranks})
    found = [RankLayout.colocated_on(ranks) for ranks in totals]
    for total in totals:
        near = round(total * encoder_share)
        found += [
            RankLayout.decoupled(encoder, total - encoder)
            for encoder in range(near - 1, near + 2)
            if 0 < encoder < total
        ]
    return found
