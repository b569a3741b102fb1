"""Plans in which encoder and backbone have GPUs of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy

from flowtrain.plan.prices.costs import Shape
from flowtrain.plan.search.context import Context
from flowtrain.plan.search.coupled import Priced
from flowtrain.plan.search.encoders import Encoders


@dataclass(frozen=True, kw_only=True, slots=True)
class Disaggregated:
    """A backbone, with the best encoder beside it.

    Attributes:
        context: Pool of the backbone.
        encoder_context: Pool of the encoder.
        shape: Mesh of the backbone.
        microbatches: Microbatches of a replica per step.
        encoders: Encoders for these microbatches.
        encoder_gpus: GPUs that the backbone leaves.
        bound_s: Lower bound of the step.
    """

    context: Context
    encoder_context: Context
    shape: Shape
    microbatches: int
    encoders: Encoders
    encoder_gpus: int
    bound_s: float

    @classmethod
    def all_of(
        cls, context: Context, encoder_context: Context, gpus: int, cutoff_s: float
    ) -> Iterator[Disaggregated]:
        """Candidates whose step may be below the cutoff.

        Args:
            context: Pool of the backbone.
            encoder_context: Pool of the encoder, perhaps the same.
            gpus: GPUs of the backbone.
            cutoff_s: Steps at least as long are of no interest.
        """
        left = encoder_context.pool.gpus - (gpus if context is encoder_context else 0)
        if left <= 0:
            return
        for pipelines in context.pipelines("backbone", gpus, cutoff_s):
            shape = pipelines.shape
            bounds = pipelines.bounds(context.usable_bytes)
            beside, steps_s = [], numpy.full(len(pipelines.rows), numpy.inf)
            for number, count in enumerate(pipelines.microbatches.astype(int).tolist()):
                encoders = encoder_context.encoders(
                    microbatches=count,
                    in_flight=min(count, shape.mesh.pp + 1),
                    cutoff_s=cutoff_s,
                )
                beside.append(encoders)
                steps_s[number] = encoders.steps_s(
                    left,
                    fill_s=float(bounds.fill_s[number]),
                    longest_s=float(bounds.longest_s[number]),
                    update_s=pipelines.least_update_s,
                    microbatches=count,
                ).min(initial=numpy.inf)
            by_count = dict(zip(pipelines.microbatches.tolist(), beside, strict=True))
            for microbatches, bound_s in context.promising(pipelines, steps_s, cutoff_s):
                yield cls(
                    context=context,
                    encoder_context=encoder_context,
                    shape=shape,
                    microbatches=microbatches,
                    encoders=by_count[microbatches],
                    encoder_gpus=left,
                    bound_s=bound_s,
                )

    def priced(self) -> Priced | None:
        pipeline = self.context.pipeline("backbone", self.shape, self.microbatches)
        self.context.counts["priced"] += 1
        cut = pipeline.cut(self.context.usable_bytes)
        if cut is None:
            return None
        steps_s = self.encoders.steps_s(
            self.encoder_gpus,
            fill_s=cut.fill_s + cut.heaviest_s,
            longest_s=cut.longest_s,
            update_s=cut.update_s,
            microbatches=self.microbatches,
        )
        number = int(steps_s.argmin())
        return Priced(
            mode="disaggregated",
            context=self.context,
            pipeline=pipeline,
            cut=cut,
            encoder=self.encoders.prices[number],
            encoder_context=self.encoder_context,
            step_s=float(steps_s[number]),
        )
