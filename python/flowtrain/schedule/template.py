"""A template: the order of all steps of a run, before their plans say what is in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flowtrain.config.schema import RunConfig
from flowtrain.schedule.action import Action
from flowtrain.schedule.bounded import bounded
from flowtrain.schedule.chunks import chunks
from flowtrain.schedule.role import Role
from flowtrain.schedule.stages import finish, update
from flowtrain.schedule.strict import strict
from flowtrain.steps import StepPlan


def _never(_step: int) -> bool:
    return False


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    """The order of the steps of a run."""

    staleness: int = 0
    """Steps that the encoder runs ahead of the update; 0 without `bounded`."""
    chunk_slots: int | None = None
    """Slots that are encoded, passed and passed back together; None for all of a step."""
    evaluates: Callable[[int], bool] = _never
    """Whether an evaluation follows a step."""
    saves: Callable[[int], bool] = _never
    """Whether a checkpoint follows a step."""

    def expand(
        self,
        role: Role,
        get: Callable[[int], StepPlan],
        *,
        first: int = 0,
    ) -> Iterator[Action]:
        """The actions of a rank, step by step, as their plans come.

        A run that ends early, as it is stopped or has a sample that cannot be used, ends with a
        checkpoint of its last step.

        Args:
            role: The rank.
            get: Waits for the plan of a step. It is not asked for a step behind one of kind "end".
            first: First step.
        """
        end: StepPlan | None = None

        def plan_of(step: int) -> StepPlan | None:
            nonlocal end
            if end is not None and step >= end.step:
                return None
            plan = get(step)
            if plan.kind == "end":
                end = plan
                return None
            return plan

        step = first
        while (plan := plan_of(step)) is not None:
            if self.staleness:
                yield from bounded(
                    plan,
                    role,
                    staleness=self.staleness,
                    is_first=step == first,
                    plan_of=plan_of,
                )
            elif self.chunk_slots:
                yield from chunks(plan, role, chunk_slots=self.chunk_slots)
            else:
                yield from strict(plan, role)
            yield from update(plan, role)
            yield from finish(plan, evaluates=self.evaluates, saves=self.saves)
            step += 1
        assert end is not None
        ends_early = end.stopped or end.error is not None
        if ends_early and step > first and not self.saves(step - 1):
            yield Action(step - 1, "checkpoint")


def template_of(config: RunConfig) -> Template:
    """The order of the steps of a run."""
    return Template(
        staleness=config.flow.staleness,
        chunk_slots=config.flow.chunk_slots,
        evaluates=config.is_evaluated,
        saves=config.is_saved,
    )
