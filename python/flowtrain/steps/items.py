"""Divides the images of a step into items, and assigns the items to the ranks that encode them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from flowtrain.steps.step import EncoderItem, PlannedImage


@dataclass(frozen=True, slots=True)
class SizedImage:
    """One image of a slot.

    Attributes:
        image: The image.
        num_rows: Its rows that cross the pool.
        cost: FLOPs of encoding it, in all passes of a step.
    """

    image: PlannedImage
    num_rows: int
    cost: float


Slots = Sequence[Sequence[Sequence[SizedImage]]]
"""[backbone rank][slot][image], in the order in which the rank reads them."""


@dataclass(slots=True)
class _Draft:
    """An item that has no number yet."""

    reader: int
    slot: int
    row: int
    encoder: int = 0
    num_rows: int = 0
    cost: float = 0.0
    images: list[PlannedImage] = field(default_factory=list)

    def add(self, image: SizedImage) -> None:
        self.images.append(image.image)
        self.num_rows += image.num_rows
        self.cost += image.cost


def decoupled_items(
    slots: Slots, *, encoder_ranks: int, item_tokens: int
) -> tuple[EncoderItem, ...]:
    """Items of a step whose encoder ranks hold no backbone: all are balanced by their cost.

    An item has at most `item_tokens` rows and at most an equal share of the rows of the step, so
    that no encoder rank idles while another has all images. A larger image is an item of its
    own. An item never spans slots, so that a slot never waits for images of a later slot.
    """
    total = sum(i.num_rows for rank in slots for slot in rank for i in slot)
    cap = min(item_tokens, max(1, -(-total // encoder_ranks)))
    drafts = [
        draft
        for slot, reader, images in _in_slot_order(slots)
        for draft in _cut(images, [0] * len(images), reader, slot, cap)
    ]
    load = [0.0] * encoder_ranks
    for draft in sorted(drafts, key=lambda draft: -draft.cost):
        draft.encoder = min(range(encoder_ranks), key=lambda rank: load[rank])
        load[draft.encoder] += draft.cost
    return _numbered(drafts)


# An item that moves costs both ranks a call of the encoder and a copy, which in small models take
# several percent of a step. Below this share of the mean load, that is more than it saves.
_WORTH_MOVING = 0.05


def colocated_items(
    slots: Slots, *, load: Sequence[float], item_tokens: int
) -> tuple[EncoderItem, ...]:
    """Items of a step whose ranks hold both modules: each rank encodes what it reads itself.

    Only if the load of a rank exceeds the mean by 5 %, such as that of a sample with many images,
    does its surplus move to other ranks: images of its last slots, one after the other, so that few
    records cross the pool. The documents of a slot are in order of length, so that small images
    move first and loads come out nearly equal. An item has at most `item_tokens` rows; a larger
    image is an item of its own. An item never spans slots.

    Args:
        slots: The images.
        load: FLOPs of both modules on each rank, if it encodes all that it reads.
        item_tokens: Maximum rows of an item.
    """
    encoders = [iter(chosen) for chosen in _move_surplus(slots, list(load))]
    return _numbered(
        [
            draft
            for slot, reader, images in _in_slot_order(slots)
            for draft in _cut(
                images, list(islice(encoders[reader], len(images))), reader, slot, item_tokens
            )
        ]
    )


def _move_surplus(slots: Slots, load: list[float]) -> list[list[int]]:
    """The rank that encodes each image: [backbone rank][image], over all slots of the rank."""
    costs = [[image.cost for slot in rank for image in slot] for rank in slots]
    mean = sum(load) / len(load)
    encoders = [[rank] * len(of_rank) for rank, of_rank in enumerate(costs)]
    givers = [rank for rank, own in enumerate(load) if own > (1 + _WORTH_MOVING) * mean]
    for giver in sorted(givers, key=lambda rank: -load[rank]):
        taker = giver
        for image in _last_slots_first(slots[giver]):
            cost = costs[giver][image]
            # A run of images goes to one rank, so that it is one item.
            if taker == giver or load[taker] + cost > mean:
                taker = min(range(len(load)), key=lambda rank: load[rank])
            if load[giver] > mean and load[taker] + cost < load[giver]:
                encoders[giver][image] = taker
                load[giver] -= cost
                load[taker] += cost
    return encoders


def _last_slots_first(slots: Sequence[Sequence[SizedImage]]) -> list[int]:
    """Numbers of the images of a rank; those of a slot are in order."""
    numbers: list[int] = []
    first = 0
    for slot in slots:
        numbers = [*range(first, first + len(slot)), *numbers]
        first += len(slot)
    return numbers


def _in_slot_order(slots: Slots) -> Iterator[tuple[int, int, Sequence[SizedImage]]]:
    """(slot, backbone rank, images), the first slot of every rank first."""
    for slot, of_ranks in enumerate(zip(*slots, strict=True)):
        for reader, images in enumerate(of_ranks):
            yield slot, reader, images


def _cut(
    images: Sequence[SizedImage], encoders: Sequence[int], reader: int, slot: int, cap: int
) -> list[_Draft]:
    """Items of one slot, each of images in a row that one rank encodes."""
    drafts: list[_Draft] = []
    row = 0
    for image, encoder in zip(images, encoders, strict=True):
        last = drafts[-1] if drafts else None
        if last is None or last.encoder != encoder or last.num_rows + image.num_rows > cap:
            drafts.append(_Draft(reader, slot, row, encoder))
        drafts[-1].add(image)
        row += image.num_rows
    return drafts


def _numbered(drafts: Sequence[_Draft]) -> tuple[EncoderItem, ...]:
    return tuple(
        EncoderItem(
            index=index,
            encoder=draft.encoder,
            reader=draft.reader,
            slot=draft.slot,
            row=draft.row,
            num_rows=draft.num_rows,
            images=tuple(draft.images),
        )
        for index, draft in enumerate(drafts)
    )
