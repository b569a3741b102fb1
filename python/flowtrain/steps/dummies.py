"""Dummies: items without images, so that all ranks of a sharded encoder run as many passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from flowtrain.config.parallel import Meets
from flowtrain.steps.step import EncoderItem


def dummies(
    items: Sequence[EncoderItem],
    *,
    encoder_ranks: int,
    meets: Meets,
    slots: int,
    chunk_slots: int | None,
) -> tuple[EncoderItem, ...]:
    """The dummies of a step; a step without images has none, as no rank encodes in it.

    Args:
        items: The items with images, numbered from 0.
        encoder_ranks: Encoder ranks.
        meets: When the passes of the encoder take all of its ranks.
        slots: Slots of the step.
        chunk_slots: Slots that are encoded together; None for all of the step. Passes are equal in
            number in each of these chunks.
    """
    found: list[EncoderItem] = []
    if meets == "never" or not items:
        return ()
    chunk = chunk_slots or slots
    for first in range(0, slots, chunk):
        counts = Counter(item.encoder for item in items if first <= item.slot < first + chunk)
        # The sums over the ranks end in the last chunk, also where it has no image.
        is_last = first + chunk >= slots
        if meets == "once":
            # The first pass of a step gathers the weights, and the last one sums the gradients.
            wanted = int(first == 0 or is_last)
        else:
            wanted = max([int(is_last), *counts.values()])
        for encoder in range(encoder_ranks):
            for _ in range(wanted - counts[encoder]):
                found.append(
                    EncoderItem(
                        index=len(items) + len(found),
                        encoder=encoder,
                        reader=_NOBODY,
                        slot=first,
                        row=0,
                        num_rows=0,
                        images=(),
                    )
                )
    return tuple(found)


_NOBODY = -1
