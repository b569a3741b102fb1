"""Builds the plan of a step from its samples: a pure function, equal on every machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from flowtrain.config.parallel import Meets
from flowtrain.cost.flops import Grid
from flowtrain.packing import fewest_slots
from flowtrain.steps.balance import packing_of
from flowtrain.steps.dummies import dummies
from flowtrain.steps.items import SizedImage, colocated_items, decoupled_items
from flowtrain.steps.passes import Passes
from flowtrain.steps.step import Document, PlannedImage, StepPlan


class SampleSize(Protocol):
    """Sizes of a sample, which the planner needs."""

    @property
    def index(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def num_targets(self) -> int: ...
    @property
    def grids(self) -> tuple[Grid, ...]: ...
    @property
    def seconds(self) -> tuple[float, ...]: ...
    @property
    def image_lengths(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Numbers of ranks, and maximum tokens of a microbatch and of an item.

    In a colocated layout the encoder ranks are the backbone ranks, and `passes` says what their two
    modules cost.
    """

    encoder_ranks: int
    backbone_ranks: int
    microbatch_tokens: int
    item_tokens: int
    passes: Passes
    colocated: bool = False
    encoder_meets: Meets = "never"
    """When the passes of the encoder take all of its ranks."""
    backbone_meets: Meets = "never"
    """The same of the backbone."""
    chunk_slots: int | None = None
    """Slots that are encoded together; None for all of a step."""


def _one_for_each_token(_: Grid, num_tokens: int) -> int:
    return num_tokens


def build_step(
    step: int,
    samples: Sequence[SampleSize],
    cost: Sequence[float],
    layout: Layout,
    *,
    kind: Literal["train", "eval", "answer"] = "train",
    image_cost: Callable[[Grid], float],
    image_rows: Callable[[Grid, int], int] = _one_for_each_token,
    cursor: int,
    dropped: int = 0,
    truncated: int = 0,
    flops: float = 0.0,
) -> StepPlan:
    """Assign documents to slots, images to items, and items to encoder ranks.

    Documents balance the cost of the backbone over the ranks, or of both modules if ranks hold
    both: that of each slot where the ranks meet in every slot, or else of the step. The documents
    of a slot are in order of length.

    Args:
        step: Number of the step.
        samples: Sizes of its samples, in the seeded order.
        cost: Backbone cost of each sample in forward FLOPs, shape [num_samples].
        layout: Numbers of ranks, and maximum tokens.
        kind: What is done with the samples.
        image_cost: Encoder cost of an image in forward FLOPs, from its grid.
        image_rows: Rows that cross the pool for an image, from its grid and its tokens.
        cursor: Samples drawn from the data order up to and including this step.
        dropped: Samples that were drawn for this step and left out.
        truncated: Samples of this step that were truncated.
        flops: Model FLOPs of training on these samples, for MFU.

    Raises:
        PackingError: A sample is longer than a microbatch.
    """
    passes = layout.passes

    def flops_of(grid: Grid) -> float:
        return passes.encoder * image_cost(grid)

    if layout.colocated:
        cost = [
            passes.backbone * own + sum(map(flops_of, sample.grids))
            for own, sample in zip(cost, samples, strict=True)
        ]
    place = fewest_slots(
        [s.num_tokens for s in samples],
        cost,
        ranks=layout.backbone_ranks,
        max_tokens=layout.microbatch_tokens,
        # Ranks that meet in every slot wait for the slowest one there, others at the end.
        objective="lockstep" if layout.backbone_meets == "always" else "accumulate",
    )
    members: list[list[list[SampleSize]]] = [
        [[] for _ in range(place.microbatches)] for _ in range(layout.backbone_ranks)
    ]
    for sample, rank, slot in zip(samples, place.rank.tolist(), place.slot.tolist(), strict=True):
        members[rank][slot].append(sample)
    for of_rank in members:
        for of_slot in of_rank:
            # Documents of equal length side by side are computed by one call of the attention.
            of_slot.sort(key=lambda sample: (sample.num_tokens, sample.image_lengths))
    images = [[_images(slot, flops_of, image_rows) for slot in rank] for rank in members]
    if layout.colocated:
        load = place.loads.sum(axis=0).tolist()
        items = colocated_items(images, load=load, item_tokens=layout.item_tokens)
    else:
        items = decoupled_items(
            images, encoder_ranks=layout.encoder_ranks, item_tokens=layout.item_tokens
        )
    items += dummies(
        items,
        encoder_ranks=layout.encoder_ranks,
        meets=layout.encoder_meets,
        slots=place.microbatches,
        chunk_slots=layout.chunk_slots,
    )
    return StepPlan(
        step=step,
        kind=kind,
        slots=place.microbatches,
        documents=tuple(
            tuple(tuple(_document(s) for s in slot) for slot in rank) for rank in members
        ),
        items=items,
        num_targets=sum(s.num_targets for s in samples),
        samples=tuple(s.index for s in samples),
        cursor=cursor,
        dropped=dropped,
        truncated=truncated,
        flops=flops,
        packing=packing_of(
            place,
            items,
            [sum(s.image_lengths) for s in samples],
            encoder_ranks=layout.encoder_ranks,
            colocated=layout.colocated,
        ),
    )


def _document(sample: SampleSize) -> Document:
    return Document(
        sample=sample.index,
        num_tokens=sample.num_tokens,
        num_targets=sample.num_targets,
        image_tokens=sum(sample.image_lengths),
        grids=sample.grids,
        seconds=sample.seconds,
    )


def _images(
    samples: Sequence[SampleSize],
    image_cost: Callable[[Grid], float],
    image_rows: Callable[[Grid, int], int],
) -> list[SizedImage]:
    return [
        SizedImage(
            PlannedImage(sample.index, image, grid), image_rows(grid, length), image_cost(grid)
        )
        for sample in samples
        for image, (grid, length) in enumerate(zip(sample.grids, sample.image_lengths, strict=True))
    ]
