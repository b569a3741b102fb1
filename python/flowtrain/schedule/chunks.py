"""The order of `flow.chunk_slots`: the passes of some slots, and then those of the next ones.

What a rank keeps of its items is that of one chunk, not of a step, and nothing is computed twice.
It is for ranks that hold both modules: others would wait for each other in every chunk.
"""

from __future__ import annotations

from collections.abc import Iterator

from flowtrain.schedule.action import Action
from flowtrain.schedule.role import Role
from flowtrain.schedule.stages import encode, encoder_backward, passes
from flowtrain.steps import StepPlan


def chunks(plan: StepPlan, role: Role, *, chunk_slots: int) -> Iterator[Action]:
    """The passes of both modules in a step, `chunk_slots` slots at a time."""
    for first in range(0, plan.slots, chunk_slots):
        slots = range(first, min(first + chunk_slots, plan.slots))
        yield from encode(plan, role, slots)
        yield from passes(plan, role, slots, in_chunks=True)
        yield from encoder_backward(plan, role, slots)
