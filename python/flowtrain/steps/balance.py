"""How balanced the packed step is, compared with arrival order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
from numpy.typing import ArrayLike

from flowtrain.steps.step import Balance, EncoderItem, Packing
from flowtrain_core.packing import Assignment, schedule


def packing_of(
    place: Assignment,
    items: Sequence[EncoderItem],
    image_tokens: Sequence[int],
    *,
    encoder_ranks: int,
    colocated: bool,
) -> Packing:
    """The proven bound of a step, and its balance when packed and in arrival order.

    Args:
        place: Slot and rank of each sample of the step.
        items: Items of the encoder ranks.
        image_tokens: Image tokens of each sample, in the order of `place`, shape [num_samples].
        encoder_ranks: Encoder ranks.
        colocated: Whether they are the ranks of `place`.
    """
    made = numpy.zeros(encoder_ranks)
    for item in items:
        made[item.encoder] += item.num_rows
    return Packing(
        bound=place.bound,
        gap=place.gap,
        packed=Balance(
            dist_ratio=_dist_ratio(place.loads.sum(axis=0)),
            encoder_dist_ratio=_dist_ratio(made),
            pad_ratio=place.pad_ratio,
        ),
        arrival=_arrival(place, image_tokens, encoder_ranks, colocated=colocated),
    )


def _arrival(
    place: Assignment, image_tokens: Sequence[int], encoder_ranks: int, *, colocated: bool
) -> Balance:
    plain = schedule(
        place.tokens,
        place.cost,
        ranks=place.ranks,
        microbatches=place.microbatches,
        max_tokens=place.max_tokens,
        objective="accumulate",
        policy="arrival",
    )
    encoder_rank = plain.rank
    if not colocated:
        encoder_rank = schedule(
            image_tokens,
            image_tokens,
            ranks=encoder_ranks,
            microbatches=1,
            max_tokens=max(1, sum(image_tokens)),
            policy="arrival",
        ).rank
    encoded = numpy.bincount(encoder_rank, weights=image_tokens, minlength=encoder_ranks)
    bins = plain.slot * plain.ranks + plain.rank
    longest = numpy.zeros(plain.microbatches * plain.ranks)
    numpy.maximum.at(longest, bins, plain.tokens)
    allocated = float(longest[bins].sum())
    return Balance(
        dist_ratio=_dist_ratio(plain.loads.sum(axis=0)),
        encoder_dist_ratio=_dist_ratio(encoded),
        pad_ratio=1.0 - float(plain.tokens.sum()) / allocated if allocated else 0.0,
    )


def _dist_ratio(loads: ArrayLike) -> float:
    """1 - mean / max over ranks.

    Source: OmniBal's DistRatio, over the ranks of a whole step.
    """
    loads = numpy.asarray(loads)
    slowest = float(loads.max())
    return 1.0 - float(loads.sum()) / (loads.size * slowest) if slowest > 0 else 0.0
