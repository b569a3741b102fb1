"""Whether other samples of the same workload would give another plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from flowtrain.plan.arrays import FloatArray
from flowtrain.plan.result import Plan, SampleTest
from flowtrain.plan.search.coupled import Priced
from flowtrain.plan.search.loads import Loads
from flowtrain.plan.space import MODES
from flowtrain.plan.stability import batches_to_compare, of_samples, stability

_SMALLEST = 16  # Samples of a draw, about.
_TINY = 1e-30  # In place of a mean of 0, by which nothing is divided then.


class _Steps:
    """Steps of plans for samples whose mean work is another one.

    Args:
        plans: The plans, with their prices.
    """

    def __init__(self, plans: Sequence[tuple[Priced, Plan]]) -> None:
        self.plans = [plan for _, plan in plans]
        self._priced = [(priced, Loads(priced)) for priced, _ in plans]

    def seconds(self, work: FloatArray) -> list[float]:
        """Seconds of a step of each plan: `best_s`, changed as that of mean samples is.

        Args:
            work: Mean work of the samples over that of all, of the backbone and of each encoder,
                shape [1 + num_encoders].
        """
        return [
            plan.best_s * mean_step_s(*priced, work) / plan.step_s
            for priced, plan in zip(self._priced, self.plans, strict=True)
        ]

    def split(self, work: FloatArray) -> tuple[int, ...]:
        """Mode of the best plan, as a number, and GPUs of each of its modules."""
        steps_s = self.seconds(work)
        plan = self.plans[steps_s.index(min(steps_s))]
        return (MODES.index(plan.mode), *(module.layout.gpus for module in plan.modules))


def mean_step_s(priced: Priced, loads: Loads, work: FloatArray) -> float:
    """Seconds of a step for mean samples of other work, with the same layout and stages.

    Args:
        priced: The plan.
        loads: Its times by what they grow with.
        work: Work over that for which the plan was priced, of the backbone and of each encoder,
            shape [1 + num_encoders].
    """
    text = numpy.full((1, 1), loads.mean_text * work[0])
    inputs = [
        numpy.full((1, 1), mean * own)
        for mean, own in zip(loads.mean_inputs, work[1:], strict=True)
    ]
    tokens = numpy.full((1, 1), loads.mean_tokens * work[0])
    stage_s = loads.passes(text, inputs, tokens).sum(0)[:, 0, 0]
    cut, encoders = priced.cut, priced.encoders
    longest_s = float(stage_s.max())
    waits = priced.pipeline.num_microbatches - 1
    fill_s = float(stage_s.sum()) + cut.heaviest_s * longest_s / cut.longest_s
    update_s = cut.update_s
    if priced.mode == "disaggregated":
        each = list(zip(encoders, work[1:].tolist(), strict=True))
        fill_s += max(own * price.first_s for price, own in each)
        fill_s += max(own * price.last_s for price, own in each)
        longest_s = max(longest_s, *(own * price.microbatch_s for price, own in each))
        update_s = max(update_s, *(price.update_s for price in encoders))
    else:
        # There are none in mode `prefix`.
        for price, own in zip(encoders, work[1:].tolist(), strict=False):
            fill_s += own * price.fill_s + price.update_s
    return fill_s + waits * longest_s + update_s


def sample_test(plans: Sequence[tuple[Priced, Plan]], *, seed: int) -> SampleTest:
    """Test how many samples are enough to choose among plans.

    By `plan.stability`, of draws from the samples of the workload. Limits of memory stay those of
    all samples.

    Args:
        plans: The plans, with their prices.
        seed: Seed of the draws.
    """
    priced = plans[0][0]
    tables, model = priced.context.tables, priced.context.model
    names = ["backbone", *(encoder.name for encoder in model.encoders)]
    work = numpy.stack([tables.sample_flops(model.layers_of(name)) for name in names], axis=1)
    work = work / numpy.maximum(work.mean(axis=0), _TINY)
    steps, draw, count = _Steps(plans), of_samples(work), len(work)
    # Doubled as often as there is room for, so that the last draws have all samples, or nearly so.
    start = count >> max(0, (count // _SMALLEST).bit_length() - 1)
    found = stability(draw, steps.split, seed=seed, start=start, maximum=count)
    best = min(range(len(plans)), key=lambda number: steps.plans[number].best_s)
    draws = batches_to_compare()
    random = numpy.random.default_rng(seed)
    regret = 0.0
    for _ in range(draws):
        steps_s = steps.seconds(numpy.asarray(draw(count, random)).mean(axis=0))
        regret = max(regret, steps_s[best] / min(steps_s) - 1)
    return SampleTest(samples=count, enough=found.samples, draws=draws, regret=regret)
