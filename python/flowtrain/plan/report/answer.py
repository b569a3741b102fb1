"""What the user asked, and what the planner found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flowtrain.plan.cluster import Cluster
from flowtrain.plan.nodes import nodes_of
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
        lora: Rank of the LoRA adapters of each part that has them.
        bad_samples: Samples of the data set that the workload leaves out, as they cannot be used.
        gpu_hour: Price of an hour of a GPU; None without one.
        steps: Steps of the run; 0 if it states none.
    """

    cluster: Cluster
    workload: str
    run: PlannedRun
    fixed: tuple[str, ...] = ()
    lora: Mapping[str, int] = field(default_factory=dict)
    bad_samples: int = 0
    gpu_hour: float | None = None
    steps: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaled:
    """The ranking for mean samples if one figure is another one than assumed.

    Attributes:
        name: What the figure is of, such as the efficiency of attention.
        factor: Its value over the assumed one.
        winner: The best plan then.
        stays: Whether it has the layout of the best plan under the assumed figure.
        loss: Time of that layout over the time of the winner, minus 1.
    """

    name: str
    factor: float
    winner: Plan
    stays: bool
    loss: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """The best of some plans.

    Attributes:
        gpus: GPUs that they may use.
        plan: The best one, or None if none fits.
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
        checked: The user's own layout, if it was asked for.
        scaled: The ranking under other figures than those that are assumed.
        curve: Best plans by number of GPUs, if they were asked for.
    """

    question: Question
    report: PlanReport
    checked: Point | None = None
    scaled: tuple[Scaled, ...] = ()
    curve: tuple[Point, ...] = ()

    @property
    def nodes(self) -> int:
        """Nodes that the best plan needs."""
        best = self.report.best
        sizes: dict[str, list[int]] = {}
        for module in best.modules:
            sizes.setdefault(module.gpu_type, []).append(module.layout.gpus)
        if best.mode != "disaggregated":
            sizes = {name: [max(own)] for name, own in sizes.items()}
        groups = {group.gpu.name: group for group in self.question.cluster.groups}
        return sum(
            nodes_of(own, node=groups[name].topology.devices_per_node)
            for name, own in sizes.items()
        )
