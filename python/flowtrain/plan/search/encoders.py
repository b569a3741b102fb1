"""Encoders on ranks of their own, as arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy

from flowtrain.plan.arrays import BoolArray, FloatArray, IntArray
from flowtrain.plan.nodes import Room, fits
from flowtrain.plan.prices.encoder import EncoderPrice
from flowtrain.plan.search.pareto import not_beaten


class Least(NamedTuple):
    """Lower bounds for a step with encoders on ranks of their own; infinite if none fits.

    Attributes:
        alone_s: Seconds that encoders take if they never wait.
        ends_s: Seconds before the backbone has its first rows, and behind its last backward pass.
    """

    alone_s: float
    ends_s: float


class Encoders:
    """Choices of a layout for each encoder, for one number of microbatches, as arrays.

    Attributes:
        prices: A price of each encoder for each choice.
        places: Pool of each encoder.
        gpus: GPUs of each encoder, shape [num_encoders, num_choices].
        times: Seconds between two microbatches; from the inputs of a microbatch to the arrival of
            its rows; from the gradients of the rows to the end of the backward pass; and between
            the last backward pass and the next step; shape [4, num_choices]. Encoders compute side
            by side, so that each of these times is that of the longest one.
    """

    def __init__(
        self,
        prices: Sequence[tuple[EncoderPrice, ...]],
        places: tuple[int, ...],
        gpus: IntArray,
        times: FloatArray,
    ) -> None:
        self.prices, self.places, self.gpus, self.times = prices, places, gpus, times
        self._fitting: dict[tuple[int, ...], BoolArray] = {}

    @classmethod
    def of(
        cls,
        prices: Sequence[EncoderPrice],
        *,
        memory_bytes: float,
        in_flight: int,
        pool: int = 0,
    ) -> Encoders:
        """Layouts of one encoder that fit into memory, without those that another one beats.

        Args:
            prices: Its layouts.
            memory_bytes: What a rank may use.
            in_flight: Microbatches whose inputs it holds.
            pool: Number of its pool.
        """
        fitting = [
            price
            for price in prices
            if price.fixed.total + in_flight * price.held.total <= memory_bytes
        ]
        gpus = numpy.array([[price.shape.gpus for price in fitting]], numpy.int64)
        times = numpy.array(
            [(price.microbatch_s, price.first_s, price.last_s, price.update_s) for price in fitting]
        )
        times = times.reshape(-1, 4).T
        kept = not_beaten(numpy.concatenate([gpus, times]))
        return cls([(fitting[number],) for number in kept], (pool,), gpus[:, kept], times[:, kept])

    def beside(self, other: Encoders, rooms: Sequence[Room]) -> Encoders:
        """Choices of these encoders and of others together, without those that another one beats.

        Args:
            other: The others.
            rooms: The pools.
        """
        ours, theirs = (
            numbers.ravel()
            for numbers in numpy.indices((len(self.prices), len(other.prices)), numpy.int64)
        )
        places = self.places + other.places
        gpus = numpy.concatenate([self.gpus[:, ours], other.gpus[:, theirs]])
        fits = numpy.ones(len(ours), bool)
        for number, room in enumerate(rooms):
            fits &= gpus[_members(places, number)].sum(0) <= room.gpus
        ours, theirs, gpus = ours[fits], theirs[fits], gpus[:, fits]
        times = numpy.maximum(self.times[:, ours], other.times[:, theirs])
        kept = not_beaten(numpy.concatenate([*_sizes(places, gpus, rooms), times]))
        pairs = zip(ours[kept].tolist(), theirs[kept].tolist(), strict=True)
        prices = [self.prices[one] + other.prices[two] for one, two in pairs]
        return Encoders(prices, places, gpus[:, kept], times[:, kept])

    def fitting(self, rooms: Sequence[Room], taken: Sequence[int]) -> BoolArray:
        """Whether each choice fits beside the backbone, shape [num_choices].

        Args:
            rooms: The pools.
            taken: GPUs of the backbone on each pool.
        """
        key = tuple(taken)
        if key not in self._fitting:
            found = numpy.ones(len(self.prices), bool)
            for number, (room, own) in enumerate(zip(rooms, taken, strict=True)):
                gpus = self.gpus[_members(self.places, number)]
                found &= gpus.sum(0) + own <= room.gpus
                # Two modules fit into whole nodes, and any into one node, if they do by their sum.
                if room.gpus <= room.node or (
                    len(gpus) + (own > 0) < 3 and not room.gpus % room.node
                ):
                    continue
                for choice in numpy.flatnonzero(found):
                    sizes = [own, *gpus[:, choice].tolist()]
                    found[choice] = fits(sizes, gpus=room.gpus, node=room.node)
            self._fitting[key] = found
        return self._fitting[key]

    def steps_s(
        self,
        rooms: Sequence[Room],
        taken: Sequence[int],
        *,
        fill_s: float,
        longest_s: float,
        update_s: float,
        microbatches: int,
    ) -> FloatArray:
        """Seconds of a step with each choice; infinite for those that do not fit.

        Args:
            rooms: The pools.
            taken: GPUs of the backbone on each pool.
            fill_s: Seconds of a microbatch through the backbone.
            longest_s: Seconds of a microbatch on its longest stage.
            update_s: Seconds behind its last backward pass.
            microbatches: Microbatches per step.
        """
        own_microbatch_s, own_first_s, own_last_s, own_update_s = self.times
        found: FloatArray = numpy.where(
            self.fitting(rooms, taken),
            own_first_s
            + own_last_s
            + fill_s
            + (microbatches - 1) * numpy.maximum(own_microbatch_s, longest_s)
            + numpy.maximum(own_update_s, update_s),
            math.inf,
        )
        return found

    def least(self, rooms: Sequence[Room], taken: Sequence[int], *, microbatches: int) -> Least:
        """What no choice that fits is below.

        Args:
            rooms: The pools.
            taken: GPUs of the backbone on each pool.
            microbatches: Microbatches per step.
        """
        alone_s = self.steps_s(
            rooms, taken, fill_s=0.0, longest_s=0.0, update_s=0.0, microbatches=microbatches
        )
        ends_s = numpy.where(numpy.isfinite(alone_s), self.times[1] + self.times[2], math.inf)
        return Least(float(alone_s.min(initial=math.inf)), float(ends_s.min(initial=math.inf)))


def _members(places: tuple[int, ...], pool: int) -> list[int]:
    """Numbers of the encoders on a pool."""
    return [number for number, place in enumerate(places) if place == pool]


def _sizes(places: tuple[int, ...], gpus: IntArray, rooms: Sequence[Room]) -> list[IntArray]:
    """What a choice needs of each pool, as rows: none fits that needs more in all of them.

    In one node, that is the sum; in several, the sizes: a module may take the place of a larger
    one.
    """
    found = []
    for number, room in enumerate(rooms):
        own = gpus[_members(places, number)]
        found.append(own.sum(0)[None] if room.gpus <= room.node else numpy.sort(own, axis=0))
    return found
