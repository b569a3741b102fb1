"""Plans in which encoders and backbone have GPUs of their own."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy

from flowtrain.plan.arrays import FloatArray
from flowtrain.plan.nodes import Room
from flowtrain.plan.prices.costs import Shape
from flowtrain.plan.search.best import Best
from flowtrain.plan.search.context import Context
from flowtrain.plan.search.coupled import Priced, kind_apart
from flowtrain.plan.search.cutoffs import Cutoffs
from flowtrain.plan.search.encoders import Encoders, Least


class Fronts:
    """The encoders of a model, each on a pool of GPUs, in the layouts that may be good.

    Attributes:
        contexts: Pool of each encoder.
        pools: The pools among them, each once.
        rooms: Their GPUs.

    Args:
        contexts: Pool of each encoder.
    """

    def __init__(self, contexts: tuple[Context, ...]) -> None:
        self.contexts = contexts
        self.pools = tuple(dict.fromkeys(contexts))
        self.rooms = tuple(
            Room(context.pool.gpus, context.pool.topology.devices_per_node)
            for context in self.pools
        )
        self._found: dict[tuple[int, int], Encoders] = {}
        self._least: dict[tuple[int, tuple[int, ...]], Least] = {}

    def encoders(self, *, microbatches: int, in_flight: int, cutoff_s: float) -> Encoders:
        """Layouts of all of them that fit into memory and may be good.

        Args:
            microbatches: Microbatches of the step.
            in_flight: Microbatches whose inputs each of them holds.
            cutoff_s: Steps at least as long are of no interest; no longer than in the calls before.
        """
        key = (microbatches, in_flight)
        if key not in self._found:
            found: Encoders | None = None
            for place, context in enumerate(self.contexts):
                own = Encoders.of(
                    context.encoders(place, microbatches=microbatches, cutoff_s=cutoff_s),
                    memory_bytes=context.usable_bytes,
                    in_flight=in_flight,
                    pool=self.pools.index(context),
                )
                found = own if found is None else found.beside(own, self.rooms)
            assert found is not None
            self._found[key] = found
        return self._found[key]

    def least(self, taken: tuple[int, ...], *, microbatches: int, cutoff_s: float) -> Least:
        """What no choice of layouts beside a backbone is below, whatever memory it has.

        Args:
            taken: GPUs that the backbone takes from each pool.
            microbatches: Microbatches of the step.
            cutoff_s: As for `encoders`.
        """
        key = (microbatches, taken)
        if key not in self._least:
            encoders = self.encoders(microbatches=microbatches, in_flight=1, cutoff_s=cutoff_s)
            self._least[key] = encoders.least(self.rooms, taken, microbatches=microbatches)
        return self._least[key]


@dataclass(frozen=True, kw_only=True, slots=True)
class Disaggregated:
    """A backbone, with the best encoders beside it.

    Attributes:
        context: Pool of the backbone.
        encoder_contexts: Pool of each encoder.
        shape: Mesh of the backbone.
        microbatches: Microbatches of a replica per step.
        encoders: Encoders for these microbatches.
        rooms: The pools of the encoders.
        taken: GPUs that the backbone takes from each of them.
        bound_s: Lower bound of the step.
    """

    context: Context
    encoder_contexts: tuple[Context, ...]
    shape: Shape
    microbatches: int
    encoders: Encoders
    rooms: tuple[Room, ...]
    taken: tuple[int, ...]
    bound_s: float

    @property
    def kind(self) -> Hashable:
        return kind_apart(self.context, self.encoder_contexts, self.shape, self.microbatches)

    @classmethod
    def all_of(
        cls, context: Context, fronts: Fronts, gpus: int, best: Best[Priced]
    ) -> Iterator[Disaggregated]:
        """Candidates that may be among the best.

        Args:
            context: Pool of the backbone.
            fronts: The encoders, perhaps on the same pool.
            gpus: GPUs of the backbone.
            best: The best plans so far.
        """
        taken = tuple(gpus if context is pool else 0 for pool in fronts.pools)
        if any(own >= room.gpus for own, room in zip(taken, fronts.rooms, strict=True)):
            return
        cutoffs = Cutoffs(best, partial(kind_apart, context, fronts.contexts))

        def with_encoders(
            shape: Shape, microbatches: FloatArray, steps_s: FloatArray
        ) -> FloatArray:
            for number in cutoffs.below(steps_s, shape, microbatches).tolist():
                count = int(microbatches[number])
                least = fronts.least(taken, microbatches=count, cutoff_s=best.cutoff_s)
                steps_s[number] = max(least.alone_s, steps_s[number] + least.ends_s)
            return steps_s

        for pipelines in context.pipelines("backbone", gpus, cutoffs, with_encoders):
            shape = pipelines.shape
            bounds = pipelines.bounds(context.usable_bytes)
            steps_s = bounds.steps_s(pipelines.microbatches)
            if not context.any_promising(pipelines, steps_s, cutoffs):
                continue
            steps_s += pipelines.least_update_s
            beside: dict[int, Encoders] = {}
            # Where the backbone alone takes too long, or does not fit, no encoders are needed.
            for number in cutoffs.below(steps_s, shape, pipelines.microbatches).tolist():
                count = int(pipelines.microbatches[number])
                beside[count] = fronts.encoders(
                    microbatches=count,
                    in_flight=context.in_flight(count, shape.mesh.pp),
                    cutoff_s=best.cutoff_s,
                )
                steps_s[number] = (
                    beside[count]
                    .steps_s(
                        fronts.rooms,
                        taken,
                        fill_s=float(bounds.fill_s[number]),
                        longest_s=float(bounds.longest_s[number]),
                        update_s=pipelines.least_update_s,
                        microbatches=count,
                    )
                    .min(initial=numpy.inf)
                )
            for microbatches, bound_s in context.promising(pipelines, steps_s, cutoffs):
                yield cls(
                    context=context,
                    encoder_contexts=fronts.contexts,
                    shape=shape,
                    microbatches=microbatches,
                    encoders=beside[microbatches],
                    rooms=fronts.rooms,
                    taken=taken,
                    bound_s=bound_s,
                )

    def priced(self, cutoff_s: float = math.inf) -> Priced | None:
        pipeline = self.context.pipeline("backbone", self.shape, self.microbatches)
        self.context.counts["priced"] += 1
        cut = pipeline.cut(self.context.usable_bytes)
        if cut is None:
            return None
        steps_s = self.encoders.steps_s(
            self.rooms,
            self.taken,
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
            encoders=self.encoders.prices[number],
            encoder_contexts=self.encoder_contexts,
            step_s=float(steps_s[number]),
        )
