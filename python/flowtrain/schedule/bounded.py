"""The order of `bounded`: a step is encoded k steps before its gradients are applied.

Rank by rank, step s + k is encoded after the slots of step s and before the encoder's backward of
it, so that the encoder of step s + k has the weights of step s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flowtrain.schedule.action import Action
from flowtrain.schedule.role import Role
from flowtrain.schedule.stages import encode, encoder_backward, passes
from flowtrain.steps import StepPlan


def bounded(
    plan: StepPlan,
    role: Role,
    *,
    staleness: int,
    is_first: bool,
    plan_of: Callable[[int], StepPlan | None],
) -> Iterator[Action]:
    """The passes of both modules in a step.

    Args:
        plan: The step.
        role: The rank.
        staleness: k.
        is_first: Whether this is the first step of the run or of a resume: then the steps before
            s + k are encoded, too.
        plan_of: The plan of a step; None behind the end of the run.
    """

    def ahead(steps: range) -> Iterator[Action]:
        for step in steps if role.encoder else ():
            if (later := plan_of(step)) is not None:
                yield from encode(later, role, range(later.slots))

    slots = range(plan.slots)
    encoded = plan.step + staleness
    if is_first:
        yield from ahead(range(plan.step, encoded))
    yield from passes(plan, role, slots)
    yield from ahead(range(encoded, encoded + 1))
    yield from encoder_backward(plan, role, slots)
