"""Cuts a model into pipeline stages, and chooses what each recomputes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from flowtrain.plan.partition.chain import Chain
from flowtrain.plan.partition.exact import exact
from flowtrain.plan.partition.layers import LEVELS, Layers, Level
from flowtrain.plan.partition.omnibal import omnibal
from flowtrain.plan.partition.replay import replay_stages
from flowtrain.plan.partition.replayed import replayed
from flowtrain.plan.partition.stages import Problem, Stage, StageTable
from flowtrain_core import FlowTrainError

POLICIES: dict[str, Callable[[StageTable], list[int] | None]] = {
    "exact": exact,
    "replayed": replayed,
    "omnibal": omnibal,
}

_COLUMNS = ("forward ms", "backward ms", "sends ms", "used GiB", "free GiB")


class NoPartitionError(FlowTrainError, ValueError):
    """No partition fits into memory; the message says how many bytes or stages would do.

    The message is made when it is read: that takes longer than to find out that none fits, and
    searches over many meshes read none.

    Args:
        explain: Makes the message.
    """

    def __init__(self, explain: Callable[[], str]) -> None:
        super().__init__(explain)
        self._explain = explain

    def __str__(self) -> str:
        return self._explain()


@dataclass(frozen=True, kw_only=True, slots=True)
class Partition:
    """Stages of a pipeline.

    Attributes:
        stages: The stages in order.
        microbatches: Microbatches per step.
    """

    stages: tuple[Stage, ...]
    microbatches: int

    @property
    def bottleneck(self) -> int:
        """Number of the longest stage."""
        return max(range(len(self.stages)), key=lambda number: self.stages[number].seconds)

    @property
    def step_s(self) -> float:
        """Sum of the stage times plus (microbatches - 1) times the longest: the objective."""
        seconds = [stage.seconds for stage in self.stages]
        return sum(seconds) + (self.microbatches - 1) * max(seconds)

    def replay_s(self, *, overlapped: bool = False) -> float:
        """Time of a step of 1F1B, by replay.

        Args:
            overlapped: Whether a stage computes while it sends.
        """
        return replay_stages(self.stages, microbatches=self.microbatches, overlapped=overlapped)

    def explain(self) -> str:
        """A table of the stages."""
        form = "{:<5}  {:<9}  {:<9}  {:>10}  {:>11}  {:>8}  {:>8}  {:>8}"
        lines = [form.format("stage", "layers", "recompute", *_COLUMNS)]
        for number, stage in enumerate(self.stages):
            sends_s = stage.forward_send_s + stage.backward_send_s
            times = [f"{1e3 * time:.3f}" for time in (stage.forward_s, stage.backward_s, sends_s)]
            sizes = [f"{size / 2**30:.2f}" for size in (stage.memory_bytes, stage.free_bytes)]
            layers = f"{stage.first}-{stage.end - 1}"
            lines.append(form.format(number, layers, stage.level, *times, *sizes))
        lines[1 + self.bottleneck] += "  longest"
        return "\n".join(lines)


def partition(
    layers: Layers,
    *,
    stages: int,
    microbatches: int,
    memory_bytes: int,
    link_bytes_per_s: float,
    levels: Sequence[Level] = LEVELS,
    policy: str = "exact",
    other_bytes: int = 0,
    ends: tuple[int, int] = (1, 1),
) -> Partition:
    """Cut a model into pipeline stages for 1F1B, and choose what each recomputes.

    Minimizes the sum of the stage times plus (microbatches - 1) times the longest one. A stage's
    time is that of its passes, its recomputation and its sends. Each stage recomputes as little as
    its free memory allows.

    Args:
        layers: The layers.
        stages: Pipeline stages, each of one layer at least.
        microbatches: Microbatches per step.
        memory_bytes: Memory of one stage for weights, gradients, optimizer and activations.
        link_bytes_per_s: Rate at which a stage sends to its neighbour; `math.inf` if sends cost
            nothing.
        levels: Levels of recomputation to choose from.
        policy: One of POLICIES: "exact", in milliseconds; "replayed", which then shifts cuts while
            a replay of 1F1B gets shorter, in tenths of a second; or "omnibal", for comparison.
        other_bytes: Memory that other modules need on the same devices while a stage holds weights,
            gradients and optimizer state alone: before the first microbatch of a step, and behind
            the last one.
        ends: Layers that the first stage and the last one have at least, if there are several.

    Raises:
        ValueError: An argument is out of its range.
        NoPartitionError: No partition fits, or none that the policy tries.
    """
    for name, value, least, limit in (
        ("stages", stages, 1, len(layers)),
        ("microbatches", microbatches, 1, 1 << 31),
        ("memory_bytes", memory_bytes, 1, 1 << 62),
        ("other_bytes", other_bytes, 0, 1 << 62),
    ):
        try:
            operator.index(value)
        except TypeError:
            raise ValueError(f"{name}={value!r}: must be an integer") from None
        if not least <= value <= limit:
            few = f", since the model has {limit} layers" if name == "stages" else ""
            raise ValueError(f"{name}={value}: must be from {least} to {limit}{few}")
    if not link_bytes_per_s > 0:
        raise ValueError(
            f"link_bytes_per_s={link_bytes_per_s}: must be greater than 0; math.inf is a link that "
            "costs nothing"
        )
    if min(ends) < 1 or sum(ends) > len(layers):
        raise ValueError(
            f"ends={ends}: both must be at least 1, and {len(layers)} at most together"
        )
    if not levels or not set(levels) <= set(LEVELS):
        raise ValueError(f"levels={levels}: choose one or more of {', '.join(LEVELS)}")
    if policy not in POLICIES:
        raise ValueError(f"policy '{policy}': choose from {', '.join(POLICIES)}")
    problem = Problem(
        layers=layers,
        stages=stages,
        microbatches=microbatches,
        memory_bytes=memory_bytes,
        other_bytes=other_bytes,
        link_bytes_per_s=link_bytes_per_s,
        levels=[level for level in LEVELS if level in levels],
        ends=ends,
    )
    table = StageTable(problem)
    cuts = POLICIES[policy](table)
    if cuts is None:
        raise NoPartitionError(lambda: _no_partition(table, policy))
    return Partition(stages=tuple(table.stages(cuts)), microbatches=microbatches)


def _no_partition(table: StageTable, policy: str) -> str:
    """Why there is no partition of a table that the policy finds."""
    problem = table.problem
    least = Chain.of(table.least_bytes())
    need = least.shortest_longest()
    limit = f"memory_bytes={problem.memory_bytes}"
    if need <= problem.memory_bytes:
        return (
            f"none of the partitions into {problem.stages} stages that policy '{policy}' tries "
            f"fits {limit}, others do; use policy='exact'"
        )
    smallest = table.smallest(least.lowest_sum(need).ends)
    number = max(range(problem.stages), key=lambda number: smallest[number].memory_bytes)
    stage = smallest[number]
    way_out = f"raise memory_bytes to {stage.memory_bytes}"
    for stages in range(problem.stages + 1, min(2 * problem.stages, len(problem.layers)) + 1):
        more = StageTable(replace(problem, stages=stages))
        if Chain.of(more.least_bytes()).shortest_longest() <= problem.memory_bytes:
            way_out += f", or use {stages} stages"
            break
    return (
        f"no partition into {problem.stages} stages fits {limit}: in the one with the lowest peak, "
        f"stage {number} (layers {stage.first} to {stage.end - 1}, recomputation '{stage.level}', "
        f"microbatches in flight: {stage.in_flight}) needs {stage.memory_bytes} bytes, "
        f"{-stage.free_bytes} more; {way_out}"
    )
