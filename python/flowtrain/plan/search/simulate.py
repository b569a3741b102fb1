"""Prices plans by scheduling sampled batches and replaying them: simulated, not measured."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy

from flowtrain.plan.arrays import FloatArray, IntArray
from flowtrain.plan.partition import replay_uneven
from flowtrain.plan.prices.encoder import EncoderPrice
from flowtrain.plan.search.coupled import Priced
from flowtrain.plan.search.loads import Loads
from flowtrain.plan.work import Work
from flowtrain_core.packing import Assignment, NoRoomError, schedule
from flowtrain_core.packing.interface import Objective

_MOST_SLOTS = 2
"""Factor on the slots of a plan that a batch may need if it does not fit into them."""


class Simulation:
    """Sampled batches, on which plans are replayed.

    A batch repeats samples only if the workload has fewer than it needs.

    Args:
        work: The step.
        batches: Number of batches to sample.
        seed: Seed of the samples.
    """

    def __init__(self, work: Work, *, batches: int, seed: int) -> None:
        if batches < 1:
            raise ValueError(f"batches={batches}: it must be at least 1")
        random = numpy.random.default_rng(seed)
        known = len(work.workload)
        self._work = work
        self._batches = [
            random.choice(known, work.batch, replace=known < work.batch) for _ in range(batches)
        ]

    def step_s(self, priced: Priced) -> float:
        """Mean seconds of a step over the batches; infinite if one of them has no schedule.

        The packing scheduler places the samples, and a step is as long as that of the slowest
        replica. Inputs are dealt to the replicas of an encoder on its own, the largest first.
        """
        loads = Loads(priced)
        return float(numpy.mean([self._batch_s(priced, loads, batch) for batch in self._batches]))

    def _batch_s(self, priced: Priced, loads: Loads, batch: IntArray) -> float:
        plan = _scheduled(priced, self._work.workload.tokens[batch], loads.text[batch])
        if plan is None:
            return math.inf
        sums = []
        for flops in loads.inputs:
            sums.append(numpy.zeros((plan.microbatches, plan.ranks)))
            numpy.add.at(sums[-1], (plan.slot, plan.rank), flops[batch])
        passes = loads.passes(plan.loads, sums)
        seconds = priced.cut.update_s
        beside, sends_s = [], 0.0
        for place, encoder in enumerate(priced.encoders):
            counts = self._work.inputs(priced.context.model.encoders[place].modality)[batch]
            # Inputs of a sample are taken to be equal.
            each = numpy.repeat(loads.inputs[place][batch] / numpy.maximum(counts, 1), counts)
            replicas, mean = encoder.shape.mesh.dp, loads.mean_encoder[place]
            if priced.mode == "colocated":
                seconds += _slowest(each, replicas) / mean * encoder.both.total + encoder.update_s
                sends_s += encoder.fill_s - encoder.both.total
            else:
                slots = numpy.repeat(plan.slot, counts)
                load_of = [
                    _slowest(each[slots == slot], replicas) / mean
                    for slot in range(plan.microbatches)
                ]
                beside.append(_passes(encoder, numpy.array(load_of)))
                seconds = max(seconds, encoder.update_s)
                sends_s = max(sends_s, encoder.fill_s - encoder.both.total)
        seconds += sends_s
        if beside:
            passes = _with_encoders(passes, beside)
        if priced.pipeline.shape.sharding == "full" or priced.pipeline.shape.mesh.ep > 1:
            # Replicas wait for each other in every microbatch.
            passes = passes.max(axis=3, keepdims=True)
        return seconds + float(replay_uneven(passes[0], passes[1]).max())


def _scheduled(priced: Priced, tokens: IntArray, cost: FloatArray) -> Assignment | None:
    """The schedule of a batch, in the slots of the plan or in as few more as hold it."""
    pipeline = priced.pipeline
    objective: Objective = "accumulate"
    if pipeline.stages > 1 or priced.mode == "disaggregated":
        objective = "pipeline"
    elif pipeline.shape.sharding == "full" or pipeline.shape.mesh.ep > 1:
        objective = "lockstep"
    stages = pipeline.stages + (priced.mode == "disaggregated")
    planned = pipeline.num_microbatches
    for slots in range(planned, _MOST_SLOTS * planned + 1):
        try:
            return schedule(
                tokens,
                cost,
                ranks=pipeline.shape.mesh.dp,
                microbatches=slots,
                max_tokens=int(pipeline.row.most_tokens),
                objective=objective,
                stages=stages if objective == "pipeline" else 1,
            )
        except NoRoomError:
            continue
    return None


def _slowest(loads: FloatArray, replicas: int) -> float:
    """Load of the slowest replica if loads are dealt, the largest first, to the one with least."""
    if len(loads) <= replicas:
        return float(loads.max(initial=0.0))
    sums = [0.0] * replicas
    for load in numpy.sort(loads)[::-1].tolist():
        heapq.heapreplace(sums, sums[0] + load)
    return max(sums)


def _passes(encoder: EncoderPrice, loads: FloatArray) -> FloatArray:
    """Forward and backward passes of an encoder, shape [2, num_microbatches]."""
    own_s = numpy.array([encoder.forward.total, encoder.backward.total])
    found: FloatArray = own_s[:, None] * loads
    return found


def _with_encoders(passes: FloatArray, beside: Sequence[FloatArray]) -> FloatArray:
    """Passes with those of encoders as the first stage, which all replicas wait for.

    Encoders compute side by side, so that each pass is as long as that of the slowest one.
    """
    longest_s = numpy.max(beside, axis=0)
    shape = (2, 1, passes.shape[2], passes.shape[3])
    stage = numpy.broadcast_to(longest_s[:, None, :, None], shape)
    return numpy.concatenate([stage, passes], axis=1)
