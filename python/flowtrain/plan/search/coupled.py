"""Plans in which encoders and backbone share their GPUs, and so their memory."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy

from flowtrain.plan.arrays import FloatArray
from flowtrain.plan.prices.costs import Shape
from flowtrain.plan.prices.encoder import EncoderPrice
from flowtrain.plan.prices.pipeline import Cut, Pipeline
from flowtrain.plan.result import Mode
from flowtrain.plan.search.best import Best
from flowtrain.plan.search.context import Context
from flowtrain.plan.search.cutoffs import Cutoffs
from flowtrain.plan.search.together import Together


@dataclass(frozen=True, kw_only=True, slots=True)
class Priced:
    """A plan with its exact price.

    Attributes:
        mode: Where the encoder runs.
        context: The backbone's pool of GPUs.
        pipeline: The backbone, or the whole model in mode `prefix`.
        cut: Its stages.
        encoders: The encoders, in their order; none in mode `prefix`.
        encoder_contexts: The pool of GPUs of each.
        step_s: Seconds of a step.
        chunk_slots: As for `Together`.
    """

    mode: Mode
    context: Context
    pipeline: Pipeline
    cut: Cut
    encoders: tuple[EncoderPrice, ...]
    encoder_contexts: tuple[Context, ...]
    step_s: float
    chunk_slots: int | None = None

    @property
    def kind(self) -> Hashable:
        """What plans have in common that are one layout in the list of the best."""
        shape, microbatches = self.pipeline.shape, self.pipeline.num_microbatches
        if self.mode == "disaggregated":
            return kind_apart(self.context, self.encoder_contexts, shape, microbatches)
        chunked = self.chunk_slots is not None
        return kind_coupled(self.mode, self.context, shape, microbatches, chunked=chunked)


def kind_coupled(
    mode: Mode, context: Context, shape: Shape, microbatches: int, *, chunked: bool = False
) -> Hashable:
    """All but the replicas: the same layout with fewer GPUs is no other one.

    The two orders of a colocated step are two kinds: ranks wait for each other in each chunk, which
    the simulation alone knows.
    """
    mesh = shape.mesh
    sizes = (mesh.tp, mesh.cp, mesh.pp, mesh.ep)
    return mode, context.pool.gpu_type, sizes, shape.sharding, microbatches, chunked


def kind_apart(
    context: Context, encoders: tuple[Context, ...], shape: Shape, microbatches: int
) -> Hashable:
    """The backbone, its GPUs included: these divide the GPUs among the modules."""
    types = tuple(each.pool.gpu_type for each in (context, *encoders))
    return types, kind_coupled("disaggregated", context, shape, microbatches), shape.gpus


@dataclass(frozen=True, kw_only=True, slots=True)
class Prefix:
    """Encoders and backbone in one pipeline, with one layout: the uniform plans."""

    context: Context
    shape: Shape
    microbatches: int
    bound_s: float

    @property
    def kind(self) -> Hashable:
        return kind_coupled("prefix", self.context, self.shape, self.microbatches)

    @classmethod
    def all_of(
        cls,
        context: Context,
        gpus: int,
        best: Best[Priced],
        only: Collection[Hashable] | None = None,
    ) -> Iterator[Prefix]:
        """Candidates with some GPUs of a pool that may be among the best.

        Args:
            context: The pool.
            gpus: The GPUs.
            best: The best plans so far.
            only: Kinds that are wanted; None for all.
        """
        cutoffs = Cutoffs(best, partial(kind_coupled, "prefix", context), only)
        for pipelines in context.pipelines("model", gpus, cutoffs):
            steps_s = pipelines.bounds(context.usable_bytes).steps_s(pipelines.microbatches)
            if not context.any_promising(pipelines, steps_s, cutoffs):
                continue
            steps_s += pipelines.least_update_s
            for microbatches, bound_s in context.promising(pipelines, steps_s, cutoffs):
                yield cls(
                    context=context,
                    shape=pipelines.shape,
                    microbatches=microbatches,
                    bound_s=bound_s,
                )

    def priced(self, cutoff_s: float = math.inf) -> Priced | None:
        pipeline = self.context.pipeline("model", self.shape, self.microbatches)
        self.context.counts["priced"] += 1
        cut = pipeline.cut(self.context.usable_bytes)
        if cut is None:
            return None
        step_s = cut.step_s(self.microbatches)
        return Priced(
            mode="prefix",
            context=self.context,
            pipeline=pipeline,
            cut=cut,
            encoders=(),
            encoder_contexts=(),
            step_s=step_s,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Colocated:
    """Encoders and backbone on the same GPUs, one after the other, each with a layout of its own.

    All inputs of a step are encoded before the backbone's pipeline; or, `chunked`, those of some
    slots at a time, for which less memory is enough.
    """

    context: Context
    shape: Shape
    microbatches: int
    chunked: bool
    bound_s: float

    @property
    def kind(self) -> Hashable:
        return kind_coupled(
            "colocated", self.context, self.shape, self.microbatches, chunked=self.chunked
        )

    @classmethod
    def all_of(
        cls,
        context: Context,
        gpus: int,
        best: Best[Priced],
        only: Collection[Hashable] | None = None,
    ) -> Iterator[Colocated]:
        """Candidates with some GPUs of a pool that may be among the best, as for `Prefix`."""
        for chunked in (False, True) if context.space.chunks else (False,):
            kind = partial(kind_coupled, "colocated", context, chunked=chunked)
            yield from cls._in_order(context, gpus, Cutoffs(best, kind, only), chunked)

    @classmethod
    def _in_order(
        cls, context: Context, gpus: int, cutoffs: Cutoffs, chunked: bool
    ) -> Iterator[Colocated]:
        def with_encoders(
            shape: Shape, microbatches: FloatArray, steps_s: FloatArray
        ) -> FloatArray:
            encoders = context.colocated_encoders(shape.gpus)
            if chunked:
                # One microbatch is in no parts, and stages would run empty in each.
                steps_s = numpy.where((microbatches < 2) | (shape.mesh.pp > 1), math.inf, steps_s)
            return steps_s + encoders[0].once_s if encoders else steps_s

        for pipelines in context.pipelines("backbone", gpus, cutoffs, with_encoders):
            shape = pipelines.shape
            encoders = context.colocated_encoders(shape.gpus)
            if not encoders:
                continue
            # With all memory, and beside the shortest of the encoders.
            steps_s = pipelines.bounds(context.usable_bytes).steps_s(pipelines.microbatches)
            steps_s += encoders[0].once_s
            if not context.any_promising(pipelines, steps_s, cutoffs):
                continue
            steps_s += pipelines.least_update_s
            if not context.any_promising(pipelines, steps_s, cutoffs):
                continue
            steps_s = numpy.full(len(pipelines.rows), numpy.inf)
            for together in encoders:
                # By chunks no less time, and at best the memory of nothing but states.
                held, working = together.held_bytes, together.working_bytes
                if chunked:
                    held, working = together.states_bytes, 0.0
                left = context.usable_bytes - held
                if left > 0:
                    bounds = pipelines.bounds(left, working)
                    with_it_s = bounds.steps_s(pipelines.microbatches)
                    steps_s = numpy.minimum(steps_s, with_it_s + together.once_s)
            steps_s += pipelines.least_update_s
            for microbatches, bound_s in context.promising(pipelines, steps_s, cutoffs):
                yield cls(
                    context=context,
                    shape=shape,
                    microbatches=microbatches,
                    chunked=chunked,
                    bound_s=bound_s,
                )

    def priced(self, cutoff_s: float = math.inf) -> Priced | None:
        context, shape, slots = self.context, self.shape, self.microbatches
        pipeline = context.pipeline("backbone", shape, slots)
        context.counts["priced"] += 1
        if not self.chunked:
            return self._best_of(context.colocated_encoders(shape.gpus), pipeline, cutoff_s)
        # With all memory for the backbone.
        alone_s = pipeline.bounds(context.usable_bytes).steps_s(pipeline.microbatches)[0]
        alone_s += pipeline.least_update_s
        best: Priced | None = None
        for chunk_slots in context.space.chunk_slots_of(slots, shape.mesh.pp):
            limit_s = cutoff_s if best is None else best.step_s
            chunked = context.chunked_encoders(
                shape, slots, chunk_slots, cutoff_s=limit_s - alone_s
            )
            best = self._best_of(chunked, pipeline, limit_s) or best
        return best

    def _best_of(
        self, encoders: Sequence[Together], pipeline: Pipeline, cutoff_s: float
    ) -> Priced | None:
        """The plan with the best of some encoders, or None if none takes less than the cutoff."""
        context = self.context
        best: Priced | None = None
        for together in encoders:
            left = int(context.usable_bytes - together.held_bytes)
            working = math.ceil(together.working_bytes)
            if left <= 0:
                continue
            bounds = pipeline.bounds(left, working)
            bound_s = bounds.steps_s(pipeline.microbatches)[0] + together.once_s
            if bound_s >= cutoff_s:
                continue
            cut = pipeline.cut(left, working)
            if cut is None:
                continue
            step_s = cut.step_s(self.microbatches) + together.once_s
            if step_s < cutoff_s:
                cutoff_s = step_s
                best = Priced(
                    mode="colocated",
                    context=context,
                    pipeline=pipeline,
                    cut=cut,
                    encoders=together.prices,
                    encoder_contexts=(context,) * len(together.prices),
                    step_s=step_s,
                    chunk_slots=together.chunk_slots,
                )
        return best
