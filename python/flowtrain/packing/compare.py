"""Compares the policies on the same samples."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from flowtrain import progress
from flowtrain.packing.slots import fewest_slots
from flowtrain.workloads import Workload
from flowtrain_core.packing import POLICIES, Assignment, schedule

# Slots for 5 % more tokens than there are, so that ranks can be balanced.
_CAPACITY = 1.05
_MAX_COUNT = 1 << 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Results of one policy, as means over the steps.

    Attributes:
        policy: Its name.
        step_time: Lock-step time over that of ranks which never wait.
        waiting: Share of the ranks' lock-step time spent waiting for the slowest rank.
        gap: Lock-step time divided by its proven bound, minus 1.
        dist_ratio: Backbone: mean over slots of 1 - mean / max over ranks.
        encoder_dist_ratio: The same for the encoder.
        pad_ratio: Share of padding if slots were padded to their longest rank.
        max_over_mean: Cost of the heaviest rank divided by the mean, over whole steps.
        fill: Tokens divided by the tokens that fit.
        microbatches: Maximum slots of a rank.
        milliseconds: Median time to schedule a step.
        first: The schedule of the first step.
    """

    policy: str
    step_time: float
    waiting: float
    gap: float
    dist_ratio: float
    encoder_dist_ratio: float
    pad_ratio: float
    max_over_mean: float
    fill: float
    microbatches: int
    milliseconds: float
    first: Assignment


def steps_of(
    work: Workload,
    *,
    ranks: int,
    max_tokens: int,
    microbatches: int | None,
    step_samples: int | None,
) -> tuple[list[numpy.ndarray], int]:
    """Divide samples into steps, and choose the number of slots.

    Args:
        work: All samples; those above `max_tokens` are dropped.
        ranks: Data-parallel ranks.
        max_tokens: Maximum tokens of one slot of one rank.
        microbatches: Slots of each rank, or None for the number that every step fits into.
        step_samples: Samples per step, or None for one step of all samples.

    Returns:
        Sample indices of each full step, and the slots of each rank.

    Raises:
        ValueError: A number is not positive, no sample is within the cap, or no step is full.
    """
    for name, value in (
        ("ranks", ranks),
        ("max_tokens", max_tokens),
        ("microbatches", microbatches),
        ("step_samples", step_samples),
    ):
        if value is not None and not 1 <= value <= _MAX_COUNT:
            raise ValueError(f"{name}={value}: must be from 1 to {_MAX_COUNT}")
    if not len(work):
        raise ValueError(f"{work.name}: no samples; write one per line")
    fitting = numpy.flatnonzero(work.tokens <= max_tokens)
    if not len(fitting):
        raise ValueError(
            f"{work.name}: the shortest of {len(work)} samples has {work.tokens.min()} tokens, "
            f"which exceeds max_tokens={max_tokens}; raise it"
        )
    size = step_samples or len(fitting)
    steps = [fitting[i : i + size] for i in range(0, len(fitting) - size + 1, size)]
    if not steps:
        raise ValueError(
            f"{work.name}: {len(fitting)} samples within max_tokens={max_tokens} are fewer than a "
            f"step of {size}; lower step_samples (--step)"
        )
    if microbatches is None:
        each = progress.over("choosing the slots", steps)
        microbatches = max(_slots(work, step, ranks, max_tokens) for step in each)
    return steps, microbatches


def _slots(work: Workload, step: numpy.ndarray, ranks: int, max_tokens: int) -> int:
    """Slots per rank that hold a step and leave space for balance."""
    tokens = work.tokens[step].tolist()
    return fewest_slots(
        tokens,
        work.cost[step].tolist(),
        ranks=ranks,
        max_tokens=max_tokens,
        min_slots=max(1, -(-int(sum(tokens) * _CAPACITY) // (ranks * max_tokens))),
    ).microbatches


def compare(
    work: Workload,
    steps: Sequence[numpy.ndarray],
    *,
    ranks: int,
    microbatches: int,
    max_tokens: int,
    policies: Sequence[str] | None = None,
) -> list[Comparison]:
    """Schedule all steps with each policy.

    Args:
        work: The samples.
        steps: Sample indices of each step.
        ranks: Data-parallel ranks.
        microbatches: Slots of each rank.
        max_tokens: Maximum tokens of one slot of one rank.
        policies: Names of policies, or None for all.

    Returns:
        One comparison per policy, the best first.
    """
    rows = []
    names = list(policies or POLICIES)
    for number, policy in enumerate(names):
        plans, times = [], []
        for done, step in enumerate(steps):
            progress.show(policy, number * len(steps) + done, len(names) * len(steps))
            start = time.perf_counter()
            plans.append(
                schedule(
                    work.tokens[step],
                    work.cost[step],
                    work.encoder_cost[step],
                    ranks=ranks,
                    microbatches=microbatches,
                    max_tokens=max_tokens,
                    policy=policy,
                    # The other policies encode a sample on the rank that computes it.
                    coupling="prepass" if policy == "flowtrain-best" else "rigid",
                )
            )
            times.append(1e3 * (time.perf_counter() - start))
        rows.append(_summary(policy, plans, times))
    return sorted(rows, key=lambda row: row.waiting)


def _summary(policy: str, plans: Sequence[Assignment], times: Sequence[float]) -> Comparison:
    def mean(values: list[float]) -> float:
        return statistics.fmean(values)

    return Comparison(
        policy=policy,
        step_time=mean([1 / plan.efficiency for plan in plans]),
        waiting=mean([1 - plan.efficiency for plan in plans]),
        gap=mean([plan.gap for plan in plans]),
        dist_ratio=mean([plan.dist_ratio for plan in plans]),
        encoder_dist_ratio=mean([plan.encoder_dist_ratio for plan in plans]),
        pad_ratio=mean([plan.pad_ratio for plan in plans]),
        max_over_mean=mean([plan.max_over_mean for plan in plans]),
        fill=mean([plan.fill for plan in plans]),
        microbatches=max(plan.microbatches for plan in plans),
        milliseconds=statistics.median(times),
        first=plans[0],
    )
