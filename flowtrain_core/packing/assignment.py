"""A schedule, its proven bound, and its figures."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy
from numpy.typing import NDArray

from flowtrain_core.packing.problem import IntArray, PlaceArray

FloatArray = NDArray[numpy.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """Where each sample of a step goes. Figures are computed when they are asked for.

    Attributes:
        slot: Microbatch slot of each sample, shape [num_samples]; -1 if it is carried to a later
            step, or was left out.
        rank: Data-parallel rank of each sample, shape [num_samples]; -1 likewise.
        encoder_slot: Slot before which each sample is encoded, shape [num_samples], or None
            without encoder costs. All 0 in a pre-pass: everything is encoded first.
        encoder_rank: Rank that encodes each sample, shape [num_samples], or None.
        dropped: Samples above `max_tokens` that `oversize="drop"` dropped, ascending.
        ranks: Data-parallel ranks.
        microbatches: Slots of each rank; a policy that packs by tokens alone may need more than
            were asked for.
        max_tokens: Maximum tokens of one slot of one rank.
        objective: What was minimized.
        stages: Pipeline stages of each rank, for the objective "pipeline".
        bound: A lower bound of the objective, for any schedule of the placed samples in as many
            slots, in the unit of the costs. Objective, value, bound and gap refer to the backbone
            alone; the objective of policies for two modules is `two_module_value`.
    """

    slot: PlaceArray
    rank: PlaceArray
    encoder_slot: PlaceArray | None = None
    encoder_rank: PlaceArray | None = None
    dropped: PlaceArray
    ranks: int
    microbatches: int
    max_tokens: int
    objective: str
    stages: int = 1
    bound: float
    tokens: IntArray = field(repr=False)
    cost: NDArray[Any] = field(repr=False)
    encoder_cost: NDArray[Any] | None = field(default=None, repr=False)

    @property
    def carried(self) -> PlaceArray:
        """Samples that wait for a later step, ascending."""
        return numpy.setdiff1d(numpy.flatnonzero(self.slot < 0), self.dropped).astype(numpy.int32)

    @property
    def loads(self) -> FloatArray:
        """Backbone cost of each bin, shape [microbatches, ranks]."""
        return self._sums(self.slot, self.rank, self.cost)

    @property
    def bin_tokens(self) -> FloatArray:
        """Tokens of each bin, shape [microbatches, ranks]."""
        return self._sums(self.slot, self.rank, self.tokens)

    @property
    def encoder_loads(self) -> FloatArray:
        """Encoder cost of each bin, shape [microbatches, ranks]; zeros without encoder costs."""
        if self.encoder_cost is None or self.encoder_slot is None or self.encoder_rank is None:
            return numpy.zeros((self.microbatches, self.ranks))
        return self._sums(self.encoder_slot, self.encoder_rank, self.encoder_cost)

    @property
    def value(self) -> float:
        """Value of the objective, in the unit of the costs."""
        loads = self.loads
        match self.objective:
            case "lockstep":
                return float(loads.max(axis=1).sum())
            case "accumulate":
                return float(loads.sum(axis=0).max())
            case "max-microbatch":
                return float(loads.max())
            case "pipeline":
                return float((loads.sum(axis=0) + (self.stages - 1) * loads.max(axis=0)).max())
        raise ValueError(
            f"objective {self.objective!r}: choose from lockstep, accumulate, max-microbatch, "
            "pipeline"
        )

    @property
    def gap(self) -> float:
        """Value / bound - 1: no schedule is better by more. 0 proves an optimum."""
        return self.value / self.bound - 1.0 if self.bound > 0 else 0.0

    @property
    def two_module_value(self) -> float:
        """Largest load of either module in any bin, the objective of "flowtrain-rigid"."""
        return max(float(self.loads.max()), float(self.encoder_loads.max()))

    @property
    def two_module_bound(self) -> float:
        """Lower bound of `two_module_value`, as `bound`.

        The mean over bins of either module, or its largest sample.
        """
        bound = 0.0
        for slot, cost in ((self.slot, self.cost), (self.encoder_slot, self.encoder_cost)):
            if slot is not None and cost is not None and (placed := cost[slot >= 0]).size:
                mean = float(placed.sum()) / (self.ranks * self.microbatches)
                bound = max(bound, mean, float(placed.max()))
        return bound

    @property
    def two_module_gap(self) -> float:
        """The gap of `two_module_value`."""
        bound = self.two_module_bound
        return self.two_module_value / bound - 1.0 if bound > 0 else 0.0

    @property
    def efficiency(self) -> float:
        """Share of the ranks' lock-step time that is spent computing."""
        loads = self.loads
        slowest = loads.max(axis=1).sum()
        return float(loads.sum() / (slowest * self.ranks)) if slowest > 0 else 1.0

    @property
    def pad_ratio(self) -> float:
        """Share of padding if each slot were padded to its longest rank's tokens."""
        tokens = self.bin_tokens
        padded = float(tokens.max(axis=1).sum() * self.ranks)
        return 1.0 - float(tokens.sum()) / padded if padded > 0 else 0.0

    @property
    def dist_ratio(self) -> float:
        """Mean over slots of 1 - mean / max over ranks, of backbone cost.

        Source: OmniBal's DistRatio; slots without work are not counted.
        """
        return _dist_ratio(self.loads)

    @property
    def encoder_dist_ratio(self) -> float:
        """As `dist_ratio`, of encoder cost."""
        return _dist_ratio(self.encoder_loads)

    @property
    def max_over_mean(self) -> float:
        """Cost of the heaviest rank over the mean of ranks, over the whole step."""
        ranks = self.loads.sum(axis=0)
        return float(ranks.max() / ranks.mean()) if ranks.sum() > 0 else 1.0

    @property
    def fill(self) -> float:
        """Share of the bins' tokens that is used."""
        return float(self.bin_tokens.sum()) / (self.ranks * self.microbatches * self.max_tokens)

    def checksum(self) -> int:
        """CRC-32 of the samples, the bins, and each sample's places.

        Ranks with the same samples, costs and options have the same checksum. Reading 1,024 samples
        takes microseconds.
        """
        shape = (self.ranks, self.microbatches, self.max_tokens, self.objective, self.stages)
        crc = zlib.crc32(repr(shape).encode())
        samples = (self.tokens, self.cost, self.encoder_cost)
        for values in (*samples, self.slot, self.rank, self.encoder_slot, self.encoder_rank):
            if values is not None:
                crc = zlib.crc32(numpy.ascontiguousarray(values).data, crc)
        return crc

    def _sums(self, slot: PlaceArray, rank: PlaceArray, values: NDArray[Any]) -> FloatArray:
        placed = slot >= 0
        where = slot[placed].astype(numpy.int64) * self.ranks + rank[placed]
        sums = numpy.bincount(
            where, weights=values[placed], minlength=self.ranks * self.microbatches
        )
        return sums.astype(numpy.float64, copy=False).reshape(self.microbatches, self.ranks)


def _dist_ratio(loads: FloatArray) -> float:
    slowest = loads.max(axis=1)
    used = slowest > 0
    if not used.any():
        return 0.0
    return float((1.0 - loads[used].mean(axis=1) / slowest[used]).mean())
