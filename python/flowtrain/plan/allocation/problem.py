"""Candidates and limits of an allocation, as the solvers take them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy

from flowtrain.plan.arrays import BoolArray, FloatArray, IntArray

Rows = list[int]
"""A choice: number of the row of each module."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Module:
    """All candidates of a module, of any type of GPU, each in a row.

    Attributes:
        name: Name of the module.
        types: Names of the types of GPU.
        of_type: Number of the type of each row.
        budget: Number of the budget that each row takes its GPUs from.
        index: Index of each row among the candidates of its type.
        gpus: GPUs of each row.
        microbatch_s: Seconds from one microbatch to the next.
        fill_s: Seconds of the first microbatch.
        update_s: Seconds after the last microbatch.
        memory_bytes: Peak memory of a GPU.
        limit_bytes: Memory of a GPU of the row's type.
    """

    name: str
    types: tuple[str, ...]
    of_type: IntArray
    budget: IntArray
    index: IntArray
    gpus: IntArray
    microbatch_s: FloatArray
    fill_s: FloatArray
    update_s: FloatArray
    memory_bytes: IntArray
    limit_bytes: IntArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Block:
    """Rows of one module that take their GPUs from one budget, by GPUs and then by fill time.

    Attributes:
        rows: Number of each row in its module.
        gpus: GPUs of each row, ascending.
        microbatch_s: Seconds from one microbatch to the next.
        fill_s: Seconds of the first microbatch.
        update_s: Seconds after the last microbatch.
    """

    rows: IntArray
    gpus: IntArray
    microbatch_s: FloatArray
    fill_s: FloatArray
    update_s: FloatArray

    @classmethod
    def of(cls, module: Module, rows: IntArray) -> Block:
        keys = (module.update_s, module.microbatch_s, module.fill_s, module.gpus)
        return cls._taken(module, rows[numpy.lexsort([key[rows] for key in keys])])

    @classmethod
    def _taken(cls, source: Module | Block, at: IntArray) -> Block:
        return cls(
            rows=source.rows[at] if isinstance(source, Block) else at,
            gpus=source.gpus[at],
            microbatch_s=source.microbatch_s[at],
            fill_s=source.fill_s[at],
            update_s=source.update_s[at],
        )

    def where(self, kept: BoolArray) -> Block:
        return self._taken(self, numpy.flatnonzero(kept))

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Problem:
    """Modules, budgets of GPUs, and the rows of each module that fit into memory.

    Attributes:
        modules: The modules.
        blocks: For each module, its rows by number of the budget; none without rows.
        budgets: Names of the budgets.
        limits: GPUs of each budget.
        microbatches: Microbatches per step.
        ceilings: Ascending, all microbatch times that an allocation can have, and maybe others.
        updates: Ascending, all update times that an allocation can have, and maybe others.
    """

    modules: Sequence[Module]
    blocks: Sequence[dict[int, Block]]
    budgets: Sequence[str]
    limits: Sequence[int]
    microbatches: int
    ceilings: FloatArray
    updates: FloatArray

    @property
    def waits(self) -> int:
        """How often the longest microbatch time counts."""
        return self.microbatches - 1

    def step_s(self, rows: Rows) -> float:
        """The sum of the fill times + waits x the longest microbatch time + the longest update."""
        chosen = list(zip(self.modules, rows, strict=True))
        longest_s = max(float(module.microbatch_s[row]) for module, row in chosen)
        update_s = max(float(module.update_s[row]) for module, row in chosen)
        return self.fill_s(rows) + self.waits * longest_s + update_s

    def fill_s(self, rows: Rows) -> float:
        """The sum of the fill times."""
        return sum(float(m.fill_s[row]) for m, row in zip(self.modules, rows, strict=True))

    def gpus(self, rows: Rows) -> int:
        """GPUs that a choice takes, of all types."""
        return sum(int(m.gpus[row]) for m, row in zip(self.modules, rows, strict=True))

    def assignments(self) -> list[tuple[int, ...]]:
        """All ways to take each module's GPUs from one budget."""
        return list(itertools.product(*self.blocks))

    def fits(self, kept: Callable[[Block], BoolArray]) -> bool:
        """Whether there is a choice of these rows only."""
        fewest = []
        for blocks in self.blocks:
            of_module = {}
            for budget, block in blocks.items():
                which = kept(block)
                first = int(which.argmax())
                if which[first]:
                    of_module[budget] = int(block.gpus[first])
            fewest.append(of_module)
        return any(not any(short) for _, short in shortages(fewest, self.limits))

    def shortest_s(self) -> float:
        """Minimum over all choices of the longest microbatch time; one choice must fit."""

        def fits(number: int) -> bool:
            return self.fits(lambda block: block.microbatch_s <= self.ceilings[number])

        return float(self.ceilings[first_true(len(self.ceilings), fits)])

    def only(self, kept: Callable[[Block], BoolArray]) -> Problem:
        """The problem with these rows only."""
        blocks = []
        for of_module in self.blocks:
            left = {budget: block.where(kept(block)) for budget, block in of_module.items()}
            blocks.append({budget: block for budget, block in left.items() if len(block)})
        return replace(self, blocks=blocks)


def shortages(
    fewest: Sequence[dict[int, int]], limits: Sequence[int]
) -> list[tuple[tuple[int, ...], list[int]]]:
    """For each assignment of modules to budgets, the GPUs that each budget lacks.

    Args:
        fewest: For each module, GPUs that it needs at least, by number of the budget.
        limits: GPUs of each budget.
    """
    found = []
    for assignment in itertools.product(*fewest):
        lacks = [-limit for limit in limits]
        for of_module, budget in zip(fewest, assignment, strict=True):
            lacks[budget] += of_module[budget]
        found.append((assignment, [max(0, gpus) for gpus in lacks]))
    return found


def first_true(count: int, holds: Callable[[int], bool]) -> int:
    """The first number for which a condition holds, or count; from there on it holds for all."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
