"""The order of `strict` and `frozen`: a step is encoded, and then passed through the backbone.

Ranks that hold the encoder alone have no update if it is frozen, and run ahead of the others as far
as plans and pool allow.
"""

from __future__ import annotations

from collections.abc import Iterator

from flowtrain.schedule.action import Action
from flowtrain.schedule.role import Role
from flowtrain.schedule.stages import encode, encoder_backward, passes
from flowtrain.steps import StepPlan


def strict(plan: StepPlan, role: Role) -> Iterator[Action]:
    """The passes of both modules in a step."""
    slots = range(plan.slots)
    yield from encode(plan, role, slots)
    yield from passes(plan, role, slots)
    yield from encoder_backward(plan, role, slots)
