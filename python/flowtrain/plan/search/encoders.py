"""Encoders on ranks of their own, as arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy

from flowtrain.plan.arrays import FloatArray, IntArray
from flowtrain.plan.prices.encoder import EncoderPrice
from flowtrain.plan.search.pareto import not_beaten


class Encoders:
    """Choices of a layout for each encoder, for one number of microbatches, as arrays.

    Attributes:
        prices: A price of each encoder for each choice.
        gpus: GPUs that they take from each pool, shape [num_pools, num_choices].
        times: Seconds between two microbatches; from the inputs of a microbatch to the arrival of
            its rows; from the gradients of the rows to the end of the backward pass; and between
            the last backward pass and the next step; shape [4, num_choices]. Encoders compute side
            by side, so that each of these times is that of the longest one.
    """

    def __init__(
        self, prices: Sequence[tuple[EncoderPrice, ...]], gpus: IntArray, times: FloatArray
    ) -> None:
        self.prices, self.gpus, self.times = prices, gpus, times

    @classmethod
    def of(
        cls,
        prices: Sequence[EncoderPrice],
        *,
        memory_bytes: float,
        in_flight: int,
        pool: int = 0,
        pools: int = 1,
    ) -> Encoders:
        """Layouts of one encoder that fit into memory, without those that another one beats.

        Args:
            prices: Its layouts.
            memory_bytes: What a rank may use.
            in_flight: Microbatches whose inputs it holds.
            pool: Number of its pool.
            pools: Number of pools.
        """
        fitting = [
            price
            for price in prices
            if price.fixed.total + in_flight * price.held.total <= memory_bytes
        ]
        gpus = numpy.zeros((pools, len(fitting)), numpy.int64)
        gpus[pool] = [price.shape.gpus for price in fitting]
        times = numpy.array(
            [(price.microbatch_s, price.first_s, price.last_s, price.update_s) for price in fitting]
        )
        return cls([(price,) for price in fitting], gpus, times.reshape(-1, 4).T)._not_beaten()

    def beside(self, other: Encoders, limits: Sequence[int]) -> Encoders:
        """Choices of these encoders and of others together, without those that another one beats.

        Args:
            other: The others.
            limits: GPUs of each pool.
        """
        ours, theirs = (
            numbers.ravel()
            for numbers in numpy.indices((len(self.prices), len(other.prices)), numpy.int64)
        )
        gpus = self.gpus[:, ours] + other.gpus[:, theirs]
        fits = (gpus <= numpy.array(limits)[:, None]).all(0)
        ours, theirs, gpus = ours[fits], theirs[fits], gpus[:, fits]
        times = numpy.maximum(self.times[:, ours], other.times[:, theirs])
        kept = not_beaten(numpy.concatenate([gpus, times]))
        pairs = zip(ours[kept].tolist(), theirs[kept].tolist(), strict=True)
        prices = [self.prices[one] + other.prices[two] for one, two in pairs]
        return Encoders(prices, gpus[:, kept], times[:, kept])

    def _not_beaten(self) -> Encoders:
        kept = not_beaten(numpy.concatenate([self.gpus, self.times]))
        return Encoders(
            [self.prices[number] for number in kept], self.gpus[:, kept], self.times[:, kept]
        )

    def steps_s(
        self,
        gpus: Sequence[int],
        *,
        fill_s: float,
        longest_s: float,
        update_s: float,
        microbatches: int,
    ) -> FloatArray:
        """Seconds of a step with each choice; infinite for those that need more GPUs.

        Args:
            gpus: GPUs of each pool that may be used.
            fill_s: Seconds of a microbatch through the backbone.
            longest_s: Seconds of a microbatch on its longest stage.
            update_s: Seconds behind its last backward pass.
            microbatches: Microbatches per step.
        """
        own_microbatch_s, own_first_s, own_last_s, own_update_s = self.times
        found: FloatArray = numpy.where(
            (self.gpus <= numpy.array(gpus)[:, None]).all(0),
            own_first_s
            + own_last_s
            + fill_s
            + (microbatches - 1) * numpy.maximum(own_microbatch_s, longest_s)
            + numpy.maximum(own_update_s, update_s),
            math.inf,
        )
        return found
