"""DFLOP's choice of an encoder and a language model, for comparison."""

from __future__ import annotations

import numpy

from flowtrain.plan.allocation.problem import Block, Problem, Rows
from flowtrain.plan.arrays import FloatArray

_MAX_PAIRS = 1 << 20  # About as many are compared at a time.


def dflop(problem: Problem) -> Rows | None:
    """Minimize (microbatches + pipeline stages of both modules - 1) x the longest microbatch time.

    All pairs that use all GPUs are compared. The stages of a candidate are fill_s / microbatch_s.
    DFLOP prices neither fill times of unequal stages nor updates. Its preference for fewer
    microbatches, if these cost at most a tenth, does not apply: their number is given.

    Raises:
        ValueError: There are not two modules, or several budgets.

    Source: arXiv 2603.25120, section 3.3, and its code, `data_aware_optimizer.py`.
    """
    if len(problem.modules) != 2 or len(problem.budgets) != 1:
        raise ValueError(
            f"policy 'dflop': {len(problem.modules)} modules and {len(problem.budgets)} budgets of "
            "GPUs; it is defined for two modules and one budget; use policy='exact'"
        )
    first, second = (blocks[0] for blocks in problem.blocks)
    stages = [_stages(first), _stages(second)]
    partners = problem.limits[0] - first.gpus
    begin = second.gpus.searchsorted(partners)
    counts = second.gpus.searchsorted(partners, side="right") - begin
    best, best_s = None, numpy.inf
    chunks = 1 + int(counts.sum()) // _MAX_PAIRS
    for group in numpy.array_split(numpy.arange(len(first)), chunks):
        ones = numpy.repeat(group, counts[group])
        starts = numpy.repeat(counts[group].cumsum() - counts[group], counts[group])
        others = begin[ones] + numpy.arange(len(ones)) - starts
        longest_s = numpy.maximum(first.microbatch_s[ones], second.microbatch_s[others])
        times_s = (problem.waits + stages[0][ones] + stages[1][others]) * longest_s
        if len(times_s) and times_s.min() < best_s:
            at = int(times_s.argmin())
            best_s = times_s[at]
            best = [int(first.rows[ones[at]]), int(second.rows[others[at]])]
    return best


def _stages(block: Block) -> FloatArray:
    """Pipeline stages; 1 for a candidate that takes no time."""
    ones = numpy.ones_like(block.fill_s)
    return numpy.divide(block.fill_s, block.microbatch_s, out=ones, where=block.microbatch_s > 0)
