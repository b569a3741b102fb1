"""Input and output of a policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

IntArray = NDArray[numpy.int64]
PlaceArray = NDArray[numpy.int32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Samples of one step that are all to be placed, and the bins for them.

    Attributes:
        tokens: Tokens of each sample, at most max_tokens, shape [num_samples].
        cost: Backbone cost as integers, shape [num_samples].
        encoder_cost: Encoder cost as integers, shape [num_samples], or None.
        unit: The caller's cost per 1 of `cost`.
        encoder_unit: The caller's cost per 1 of `encoder_cost`.
        ranks: Data-parallel ranks.
        microbatches: Slots of each rank.
        max_tokens: Maximum tokens of one slot of one rank.
        objective: "lockstep", "accumulate", "max-microbatch" or "pipeline".
        stages: Pipeline stages of each rank.
        place_all: Whether each sample must be placed; else what does not fit may be left.
    """

    tokens: IntArray
    cost: IntArray
    encoder_cost: IntArray | None = None
    unit: float = 1.0
    encoder_unit: float = 1.0
    ranks: int
    microbatches: int
    max_tokens: int
    objective: str = "lockstep"
    stages: int = 1
    place_all: bool = True

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def bins(self) -> int:
        return self.ranks * self.microbatches


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Where a policy puts each sample; -1 where it has no place.

    Attributes:
        slot: Microbatch slot, shape [num_samples].
        rank: Data-parallel rank, shape [num_samples].
        microbatches: Slots in use on every rank; may be more than were asked for.
        bound: Lower bound of the objective; None if the policy computes none, or if a sample has no
            place.
        encoder_slot: Slot before which the sample is encoded, where the policy says.
        encoder_rank: Rank that encodes it.
    """

    slot: PlaceArray
    rank: PlaceArray
    microbatches: int
    bound: int | None = None
    encoder_slot: PlaceArray | None = None
    encoder_rank: PlaceArray | None = None


Policy = Callable[..., Layout]
