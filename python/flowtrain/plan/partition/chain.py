"""Dynamic programs over the ends of the stages."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from flowtrain.plan.arrays import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Cut:
    """A partition, and the value of its stages.

    Attributes:
        ends: Number of the layer behind each stage.
        total: Sum over the stages.
        longest: Maximum over the stages.
    """

    ends: list[int]
    total: float
    longest: float


class Chain:
    """Values of all stages that a partition can have.

    Attributes:
        values: One matrix for each stage, with a row for each end of the stage before it and a
            column for each end of its own; infinite where there is no such stage. The first matrix
            has one row, the last one column.
    """

    def __init__(self, values: Sequence[FloatArray], ends: Sequence[IntArray]) -> None:
        self.values = values
        self._ends = ends  # Number of the layer behind each stage, by column.

    @classmethod
    def of(cls, table: FloatArray) -> Chain:
        """All stages of a table of shape [stages, width, width], as `StageTable` has it."""
        stages, width, _ = table.shape
        values = list(table)
        ends = [stage + 1 + numpy.arange(width) for stage in range(stages)]
        values[0] = values[0][:1]
        values[-1], ends[-1] = values[-1][:, -1:], ends[-1][-1:]
        return cls(values, ends)

    def shortest_longest(self) -> float:
        """Minimum over all partitions of their largest stage, infinite if there is none."""
        longest = numpy.zeros(1)
        for of_stage in self.values:
            longest = numpy.maximum(longest[:, None], of_stage).min(axis=0)
        return float(longest[0])

    def lowest_sum(self, ceiling: float) -> Cut:
        """The partition with the lowest sum among those without a stage above the ceiling.

        Args:
            ceiling: At least `shortest_longest()`.
        """
        sums = [numpy.zeros(1)]
        for of_stage in self.values:
            allowed = numpy.where(of_stage <= ceiling, of_stage, numpy.inf)
            sums.append((sums[-1][:, None] + allowed).min(axis=0))
        ends, longest, column = [], 0.0, 0
        for stage in range(len(self.values) - 1, -1, -1):
            ends.append(int(self._ends[stage][column]))
            of_stage = self.values[stage][:, column]
            allowed = numpy.where(of_stage <= ceiling, of_stage, numpy.inf)
            column = int((sums[stage] + allowed).argmin())
            longest = max(longest, float(of_stage[column]))
        return Cut(ends[::-1], float(sums[-1][0]), longest)

    def within(self, ceiling: float) -> Chain:
        """The chain of the ends of partitions without a stage above the ceiling."""
        allowed = [of_stage <= ceiling for of_stage in self.values]
        ahead: list[BoolArray] = [numpy.ones(1, bool)]
        for of_stage in allowed:
            ahead.append(ahead[-1] @ of_stage)  # Of booleans: any.
        behind: list[BoolArray] = [numpy.ones(1, bool)]
        for of_stage in reversed(allowed):
            behind.append(of_stage @ behind[-1])
        kept = [numpy.flatnonzero(a & b) for a, b in zip(ahead, reversed(behind), strict=True)]
        return Chain(
            [
                of_stage[numpy.ix_(*around)]
                for of_stage, around in zip(self.values, itertools.pairwise(kept), strict=True)
            ],
            [ends[which] for ends, which in zip(self._ends, kept[1:], strict=True)],
        )
