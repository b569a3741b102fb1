"""Stages: parts of a step, each expanded to the actions of one rank.

A rank that does not hold the module of a stage has no action in it. The stages of the modules take
the slots that they are about: all of a step, or a chunk of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flowtrain.config.layout import ModuleName
from flowtrain.schedule.action import Action, Kind
from flowtrain.schedule.role import Role
from flowtrain.steps import StepPlan


def encode(plan: StepPlan, role: Role, slots: range) -> Iterator[Action]:
    """Encode the items that these slots read, and send their records."""
    if not role.encoder:
        return
    yield from _begin(plan, "encoder", slots)
    for item in plan.items_of(role.replica):
        if item.slot in slots:
            yield Action(plan.step, "encode", "encoder", item.index)
            if not item.is_dummy:
                yield Action(plan.step, "put", "encoder", item.index, item.reader)


def passes(
    plan: StepPlan, role: Role, slots: range, *, in_chunks: bool = False
) -> Iterator[Action]:
    """Forward and backward of slots, from the records of their items to the gradients of these."""
    if not role.backbone:
        return
    step = plan.step
    yield from _begin(plan, "backbone", slots)
    own = slots_of(plan, role, in_chunks=in_chunks)
    for slot in own:
        if slot not in slots:
            continue
        items = plan.items_for(role.replica, slot)
        for item in items:
            yield Action(step, "get", "backbone", item.index, item.encoder)
        yield Action(step, "forward", "backbone", slot)
        yield Action(step, "backward", "backbone", slot, last=slot == own[-1])
        for item in items if role.trains_encoder else ():
            yield Action(step, "put", "backbone", item.index, item.encoder)
    if slots.stop == plan.slots:
        yield Action(step, "reduce", "backbone")


def encoder_backward(plan: StepPlan, role: Role, slots: range) -> Iterator[Action]:
    """Backward of the items that these slots read, each when its gradient has arrived."""
    if not (role.encoder and role.trains_encoder):
        return
    step, is_end = plan.step, slots.stop == plan.slots
    items = [item for item in plan.items_of(role.replica) if item.slot in slots]
    for item in items:
        if not item.is_dummy:
            yield Action(step, "get", "encoder", item.index, item.reader)
        # Only behind the last slots: the sums of the backbone come first on every rank.
        last = is_end and item is items[-1]
        yield Action(step, "encoder_backward", "encoder", item.index, last=last)
    if is_end and plan.items:
        yield Action(step, "reduce", "encoder")


def evaluation(plan: StepPlan, role: Role) -> Iterator[Action]:
    """A batch of an evaluation: forward passes alone."""
    slots = range(plan.slots)
    yield from encode(plan, role, slots)
    kept: tuple[Kind, ...] = ("load", "resize", "get", "forward")
    yield from (action for action in passes(plan, role, slots) if action.kind in kept)
    yield Action(plan.step, "forget")


def update(plan: StepPlan, role: Role) -> Iterator[Action]:
    """Agree with all ranks on a step whose gradients are being summed, and apply it."""
    if role.updates:
        yield Action(plan.step, "norm")
        yield Action(plan.step, "exchange")
        yield Action(plan.step, "apply")


def finish(
    plan: StepPlan, *, evaluates: Callable[[int], bool], saves: Callable[[int], bool]
) -> Iterator[Action]:
    """What follows the update of a step, on every rank."""
    if evaluates(plan.step):
        yield Action(plan.step, "evaluate")
    if saves(plan.step):
        yield Action(plan.step, "checkpoint")
    yield Action(plan.step, "forget")


def slots_of(plan: StepPlan, role: Role, *, in_chunks: bool = False) -> list[int]:
    """Slots that a rank passes: those with documents, and empty ones where the ranks meet.

    Ranks that meet `once` wait for each other in their first pass, which gathers the weights, and
    in their last one, which sums the gradients. By chunks both must be in the same chunk on every
    rank: others may need records of later chunks from a rank that waits.
    """
    if role.meets == "always":
        return list(range(plan.slots))
    own = [slot for slot, _ in plan.documents_of(role.replica)]
    if role.meets == "once":
        return sorted({*own, 0, plan.slots - 1}) if in_chunks else own or [0]
    return own


def _begin(plan: StepPlan, module: ModuleName, slots: range) -> Iterator[Action]:
    if slots.start == 0:
        yield Action(plan.step, "load", module)
        yield Action(plan.step, "resize", module)
