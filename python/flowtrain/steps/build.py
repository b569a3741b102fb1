"""Builds the plan of a step from its samples: a pure function, equal on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from flowtrain.cost.flops import Grid
from flowtrain.packing import fewest_slots
from flowtrain.steps.balance import packing_of
from flowtrain.steps.step import Document, EncoderItem, PlannedImage, StepPlan


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
    def image_lengths(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Numbers of ranks, and maximum tokens of a microbatch and of an item."""

    encoder_ranks: int
    backbone_ranks: int
    microbatch_tokens: int
    item_tokens: int


@dataclass(slots=True)
class _Draft:
    """An item that has no encoder rank and no number yet."""

    reader: int
    slot: int
    row: int
    num_tokens: int
    images: list[PlannedImage]


def build_step(
    step: int,
    samples: Sequence[SampleSize],
    cost: Sequence[float],
    layout: Layout,
    *,
    cursor: int,
    dropped: int = 0,
    truncated: int = 0,
    flops: float = 0.0,
) -> StepPlan:
    """Assign documents to slots, images to items, and items to encoder ranks.

    Args:
        step: Number of the step.
        samples: Sizes of its samples, in the seeded order.
        cost: Backbone cost of each sample in forward FLOPs, shape [num_samples].
        layout: Numbers of ranks, and maximum tokens.
        cursor: Samples drawn from the data order up to and including this step.
        dropped: Samples that were drawn for this step and left out.
        truncated: Samples of this step that were truncated.
        flops: Model FLOPs of training on these samples, for MFU.

    Raises:
        PackingError: A sample is longer than a microbatch.
    """
    place = fewest_slots(
        [s.num_tokens for s in samples],
        cost,
        ranks=layout.backbone_ranks,
        max_tokens=layout.microbatch_tokens,
    )
    members: list[list[list[SampleSize]]] = [
        [[] for _ in range(place.microbatches)] for _ in range(layout.backbone_ranks)
    ]
    for sample, rank, slot in zip(samples, place.rank.tolist(), place.slot.tolist(), strict=True):
        members[rank][slot].append(sample)
    items = _items(members, place.microbatches, layout)
    return StepPlan(
        step=step,
        kind="train",
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
        ),
    )


def _document(sample: SampleSize) -> Document:
    return Document(
        sample=sample.index,
        num_tokens=sample.num_tokens,
        num_targets=sample.num_targets,
        image_tokens=sum(sample.image_lengths),
        grids=sample.grids,
    )


def _items(
    members: list[list[list[SampleSize]]], slots: int, layout: Layout
) -> tuple[EncoderItem, ...]:
    """Divide the images of each slot into items, and assign these to the encoder ranks.

    An item has at most `item_tokens` tokens and at most an equal share of the step's image tokens,
    so that no encoder rank idles while another has all images. A larger image is an item of its
    own. An item never spans slots, so that a slot never waits for images of a later slot.
    """
    total = sum(n for rank in members for slot in rank for s in slot for n in s.image_lengths)
    cap = min(layout.item_tokens, max(1, -(-total // layout.encoder_ranks)))
    drafts: list[_Draft] = []
    for slot in range(slots):
        for reader in range(layout.backbone_ranks):
            drafts += _cut(members[reader][slot], reader, slot, cap)
    load = [0] * layout.encoder_ranks
    encoder = [0] * len(drafts)
    for i in sorted(range(len(drafts)), key=lambda i: (-drafts[i].num_tokens, i)):
        encoder[i] = min(range(layout.encoder_ranks), key=lambda e: (load[e], e))
        load[encoder[i]] += drafts[i].num_tokens
    return tuple(
        EncoderItem(
            index=i,
            encoder=encoder[i],
            reader=draft.reader,
            slot=draft.slot,
            row=draft.row,
            num_tokens=draft.num_tokens,
            images=tuple(draft.images),
        )
        for i, draft in enumerate(drafts)
    )


def _cut(samples: Sequence[SampleSize], reader: int, slot: int, cap: int) -> list[_Draft]:
    drafts: list[_Draft] = []
    row = 0
    for sample in samples:
        images = zip(sample.grids, sample.image_lengths, strict=True)
        for image, (grid, length) in enumerate(images):
            if not drafts or drafts[-1].num_tokens + length > cap:
                drafts.append(_Draft(reader, slot, row, 0, []))
            drafts[-1].images.append(PlannedImage(sample.index, image, grid))
            drafts[-1].num_tokens += length
            row += length
    return drafts
