"""What the user asked, and what the planner found."""

from __future__ import annotations

from dataclasses import dataclass

from flowtrain.plan.cluster import Cluster
from flowtrain.plan.plan_file import PlannedRun
from flowtrain.plan.result import Plan, PlanReport


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What a plan is asked for.

    Attributes:
        cluster: The cluster.
        workload: Name of the preset or file that the samples are from.
        run: What the plan assumes of the run.
        fixed: Fields that the user has fixed, as given.
    """

    cluster: Cluster
    workload: str
    run: PlannedRun
    fixed: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaled:
    """The ranking with one efficiency 10 % lower and 10 % higher.

    Attributes:
        name: What the efficiency is of.
        lower: The best plan with it 10 % lower.
        higher: The best plan with it 10 % higher.
        lower_loss: Time of the reported plan over that of `lower` under the lower efficiency,
            minus 1.
        higher_loss: The same under the higher one.
    """

    name: str
    lower: Plan
    higher: Plan
    lower_loss: float
    higher_loss: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A budget of a curve.

    Attributes:
        gpus: GPUs of the budget.
        plan: The best plan, or None if none fits.
        reason: Why none fits.
    """

    gpus: int
    plan: Plan | None
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What the planner found.

    Attributes:
        question: What was asked.
        report: Result of the search.
        checked: The plan of the user's own layout, if it was asked for.
        scaled: The ranking under other efficiencies.
        curve: Best plans by number of GPUs, if they were asked for.
    """

    question: Question
    report: PlanReport
    checked: Plan | None = None
    scaled: tuple[Scaled, ...] = ()
    curve: tuple[Point, ...] = ()
