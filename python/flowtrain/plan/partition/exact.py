"""The best partition: bisection over ceilings of the longest stage."""

from __future__ import annotations

import numpy

from flowtrain.plan.partition.chain import Chain, Cut
from flowtrain.plan.partition.stages import StageTable

# Two partitions whose times differ by less are equal: sums of the same layers in another order
# round differently.
_ROUNDING = 1e-12


def exact(table: StageTable) -> list[int] | None:
    """Minimize the sum of stage times plus (microbatches - 1) times the longest.

    For a ceiling on the longest stage, a dynamic program gives the lowest sum. A lower ceiling
    never lowers that sum. So the sum at one ceiling plus (microbatches - 1) times a lower one
    bounds all ceilings between the two, and halves of the candidates are dropped until none can be
    better. Candidates are the times of all possible stages.

    Returns:
        Number of the layer behind each stage, or None if no partition fits.
    """
    chain = Chain.of(table.seconds)
    longest = chain.shortest_longest()
    if not numpy.isfinite(longest):
        return None
    waits = table.problem.microbatches - 1

    def value(cut: Cut) -> float:
        return cut.total + waits * cut.longest

    cheapest = chain.lowest_sum(numpy.inf)
    best = min(chain.lowest_sum(longest), cheapest, key=value)
    if not waits:
        return best.ends
    # No sum is below the cheapest one, so that a longest stage above this cannot be better.
    limit = (value(best) - cheapest.total) / waits
    chain = chain.within(limit)
    times = numpy.concatenate([seconds.ravel() for seconds in chain.values])
    ceilings = numpy.unique(times[(times > longest) & (times < limit)])
    todo = [(0, len(ceilings), cheapest.total)]  # Candidates, and what their sums are at least.
    while todo:
        low, high, least_total = todo.pop()
        if low >= high or least_total + waits * ceilings[low] >= value(best) * (1 - _ROUNDING):
            continue
        middle = (low + high) // 2
        cut = chain.lowest_sum(ceilings[middle])
        best = min(best, cut, key=value)
        todo.append((middle + 1, high, least_total))
        # Ceilings from its longest stage up to the middle one give the same cut.
        todo.append((low, int(ceilings.searchsorted(cut.longest)), cut.total))
    return best.ends
