"""Encoders on ranks of their own, as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from flowtrain.plan.arrays import FloatArray
from flowtrain.plan.prices.encoder import EncoderPrice


class Encoders:
    """Encoders for one number of microbatches, as arrays of shape [num_encoders].

    Attributes:
        prices: The encoders.
        gpus: GPUs of each.
        microbatch_s: Seconds between two microbatches.
        fill_s: Seconds that a microbatch takes from its images to the gradients of their rows.
        update_s: Seconds between the last backward pass and the next step.
    """

    def __init__(self, prices: Sequence[EncoderPrice]) -> None:
        self.prices = prices
        self.gpus = numpy.array([price.shape.gpus for price in prices])
        self.microbatch_s = numpy.array([price.microbatch_s for price in prices])
        self.fill_s = numpy.array([price.fill_s for price in prices])
        self.update_s = numpy.array([price.update_s for price in prices])
        self._fixed_bytes = numpy.array([price.fixed.total for price in prices])
        self._held_bytes = numpy.array([price.held.total for price in prices])

    def steps_s(
        self, gpus: int, *, fill_s: float, longest_s: float, update_s: float, microbatches: int
    ) -> FloatArray:
        """Seconds of a step with each of them; infinite for those that need more GPUs.

        Args:
            gpus: GPUs that may be used.
            fill_s: Seconds of a microbatch through the backbone.
            longest_s: Seconds of a microbatch on its longest stage.
            update_s: Seconds behind its last backward pass.
            microbatches: Microbatches per step.
        """
        found: FloatArray = numpy.where(
            self.gpus <= gpus,
            self.fill_s
            + fill_s
            + (microbatches - 1) * numpy.maximum(self.microbatch_s, longest_s)
            + numpy.maximum(self.update_s, update_s),
            numpy.inf,
        )
        return found

    def that_fit(self, memory_bytes: float, *, in_flight: int) -> Encoders:
        """Those that fit into memory, without those that another one is at least as good as.

        Args:
            memory_bytes: What a rank may use.
            in_flight: Microbatches whose images they hold.
        """
        fits = self._fixed_bytes + in_flight * self._held_bytes <= memory_bytes
        fitting = Encoders([self.prices[number] for number in numpy.flatnonzero(fits).tolist()])
        values = numpy.array([fitting.gpus, fitting.microbatch_s, fitting.fill_s, fitting.update_s])
        no_worse = (values[:, :, None] <= values[:, None, :]).all(0)
        # Of two that are equal, the first one is kept.
        equal = no_worse & no_worse.T
        beaten = (no_worse & (~equal | numpy.triu(equal, 1))).any(0)
        return Encoders([fitting.prices[number] for number in numpy.flatnonzero(~beaten).tolist()])
