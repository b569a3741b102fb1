"""FlowTrain's choice: the highest rate of the slowest module, then the most equal rates."""

from __future__ import annotations

from flowtrain.plan.allocation.exact import exact
from flowtrain.plan.allocation.problem import Block, Problem, Rows, first_true
from flowtrain.plan.arrays import BoolArray


def flowtrain(problem: Problem) -> Rows | None:
    """Maximize (G, -F) in lexicographic order, then minimize the step.

    A rate is 1 / microbatch_s: microbatches per second, so that each module has its demand in equal
    units. G is the lowest rate of the modules, F the highest minus the lowest. The paper sums the
    rates of several encoders, whose outputs one microbatch needs together. It leaves open which of
    several allocations with the same (G, F) is taken.

    Source: FlowTrain, arXiv 2606.23087, section 3.3.
    """
    longest_s = problem.shortest_s()

    def within(low_s: float, block: Block) -> BoolArray:
        return (block.microbatch_s >= low_s) & (block.microbatch_s <= longest_s)

    floors = problem.ceilings[problem.ceilings <= longest_s][::-1]
    # The number of the first floor, from the highest to the lowest, that a choice keeps.
    at = first_true(
        len(floors), lambda number: problem.fits(lambda block: within(float(floors[number]), block))
    )
    return exact(problem.only(lambda block: within(float(floors[at]), block)))
