"""Prices plans by scheduling sampled batches and replaying them: simulated, not measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy

from flowtrain.plan.arrays import FloatArray, IntArray
from flowtrain.plan.partition import replay_uneven
from flowtrain.plan.prices.encoder import EncoderPrice
from flowtrain.plan.search.coupled import Priced
from flowtrain.plan.search.dealt import (
    Inputs,
    deal_apart,
    deal_in_each,
    deal_together,
    most_in_chunks,
)
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

        Samples are placed, and inputs are dealt to the replicas of encoders, by the rules of the
        runtime where it runs such a plan. A step is as long as that of the slowest replica.
        """
        loads = Loads(priced)
        steps_s = [self._batch_s(priced, loads, number) for number in range(len(self._batches))]
        return float(numpy.mean(steps_s))

    def _batch_s(self, priced: Priced, loads: Loads, number: int) -> float:
        together, batch = _encodes_own(priced), self._batches[number]
        cost = loads.text[batch]
        if together:
            # Ranks have equal work in both modules together.
            cost = (
                loads.text_s * cost + loads.inputs_s(0, priced.encoders[0]) * loads.inputs[0][batch]
            )
        plan = _scheduled(priced, self._work.workload.tokens[batch], cost)
        if plan is None:
            return math.inf
        sums = [_summed(plan, values[batch]) for values in (loads.text, *loads.inputs)]
        tokens = _summed(plan, self._work.workload.tokens[batch].astype(numpy.float64))
        passes = loads.passes(sums[0], sums[1:], tokens)
        seconds, beside, sends_s = priced.cut.update_s, [], 0.0
        own_s: FloatArray = numpy.zeros((plan.microbatches, plan.ranks))
        for place, encoder in enumerate(priced.encoders):
            mean, both_s = loads.mean_encoder[place], encoder.both.total
            extra_s = encoder.fill_s - both_s
            if priced.mode == "disaggregated":
                inputs = self._inputs(priced, loads, place, batch, plan)
                beside.append(
                    _passes(encoder, self._apart(encoder, inputs, plan.microbatches) / mean)
                )
                seconds = max(seconds, encoder.update_s)
                sends_s = max(sends_s, extra_s)
                continue
            seconds += encoder.update_s
            sends_s += extra_s
            if together:
                inputs = self._inputs(priced, loads, place, batch, plan)
                dealt = deal_together(inputs, plan.loads.sum(axis=0), slots=plan.microbatches)
                own_s = dealt * loads.inputs_s(place, encoder)
            else:
                inputs = self._inputs(priced, loads, place, batch, plan)
                chunk_slots = priced.chunk_slots or plan.microbatches
                most = most_in_chunks(inputs, encoder.shape.mesh.dp, chunk_slots)
                seconds += most / mean * both_s
        seconds += sends_s
        if beside:
            passes = _with_encoders(passes, beside)
        if priced.pipeline.shape.meets:
            # Replicas wait for each other in every microbatch.
            passes = passes.max(axis=3, keepdims=True)
        if together and _meets(priced):
            chunk_slots = priced.chunk_slots or plan.microbatches
            return seconds + by_chunks(own_s, passes.sum(axis=(0, 1)), chunk_slots)
        return seconds + float((replay_uneven(passes[0], passes[1]) + own_s.sum(axis=0)).max())

    def _inputs(
        self, priced: Priced, loads: Loads, place: int, batch: IntArray, plan: Assignment
    ) -> Inputs:
        """Inputs of an encoder, in the order in which they are read."""
        modality = priced.context.model.encoders[place].modality
        lengths = self._work.workload.tokens[batch]
        # As in `steps.build`, the documents of a microbatch are in order of length.
        order = numpy.argsort(lengths, kind="stable")
        chosen = batch[order]
        count = self._work.inputs(modality)[chosen]
        each = numpy.maximum(count, 1)
        return Inputs(
            reader=plan.rank[order].astype(numpy.int64),
            slot=plan.slot[order].astype(numpy.int64),
            count=count,
            tokens=self._work.encoded_tokens(modality)[chosen] / each,
            cost=loads.inputs[place][chosen] / each,
        )

    def _apart(self, encoder: EncoderPrice, inputs: Inputs, slots: int) -> FloatArray:
        """Load of an encoder on its own in each microbatch, shape [num_slots].

        Its ranks do not wait for each other: a microbatch is encoded when the last of them is done
        with all up to this one. If they gather weights, they meet in each.
        """
        meets = encoder.shape.meets
        dealt = (deal_in_each if meets else deal_apart)(
            inputs,
            ranks=encoder.shape.mesh.dp,
            slots=slots,
            item_tokens=self._work.item_tokens,
        )
        if meets:
            longest: FloatArray = dealt.max(axis=1)
            return longest
        return numpy.diff(dealt.cumsum(axis=0).max(axis=1), prepend=0.0)


def _meets(priced: Priced) -> bool:
    """Whether ranks wait for each other within a step, in passes of either module."""
    shapes = [priced.pipeline.shape, *(encoder.shape for encoder in priced.encoders)]
    return any(shape.meets for shape in shapes)


def by_chunks(encoder_s: FloatArray, backbone_s: FloatArray, chunk_slots: int) -> float:
    """Seconds of ranks that wait for each other behind each part of a chunk.

    Args:
        encoder_s: Passes of the encoder, shape [num_microbatches, num_replicas].
        backbone_s: Passes of the backbone, of the same shape; or of [num_microbatches, 1], if
            ranks wait for each other in each.
        chunk_slots: Microbatches of a chunk.
    """
    starts = numpy.arange(0, len(encoder_s), chunk_slots)
    each = (numpy.add.reduceat(passes_s, starts) for passes_s in (encoder_s, backbone_s))
    return sum(float(chunk_s.max(axis=1).sum()) for chunk_s in each)


def _encodes_own(priced: Priced) -> bool:
    """Whether each rank encodes what it reads itself, as in the runtime's colocated layout."""
    return (
        priced.mode == "colocated"
        and priced.pipeline.stages == 1
        and [encoder.shape.mesh.dp for encoder in priced.encoders]
        == [priced.pipeline.shape.mesh.dp]
    )


def _summed(plan: Assignment, values: FloatArray) -> FloatArray:
    """Sum over each microbatch of each replica, shape [num_microbatches, num_replicas]."""
    found = numpy.zeros((plan.microbatches, plan.ranks))
    numpy.add.at(found, (plan.slot, plan.rank), values)
    return found


def _scheduled(priced: Priced, tokens: IntArray, cost: FloatArray) -> Assignment | None:
    """The schedule of a batch, in the slots of the plan or in as few more as hold it."""
    pipeline = priced.pipeline
    objective: Objective = "accumulate"
    if pipeline.stages > 1:
        objective = "pipeline"
    elif pipeline.shape.meets:
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
