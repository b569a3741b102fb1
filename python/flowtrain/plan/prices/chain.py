"""A module as a chain of layers that a pipeline cuts: lower bounds, and the exact cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from flowtrain.plan.arrays import FloatArray, IntArray
from flowtrain.plan.partition import (
    LEVELS,
    Layers,
    Level,
    NoPartitionError,
    Partition,
    Tap,
    partition,
)
from flowtrain.plan.prices.costs import Costs, Shape
from flowtrain.plan.prices.row import Row
from flowtrain.plan.prices.tables import Tables
from flowtrain.plan.result import StageLayout


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """What no cut of a chain is better than, for some rows.

    Attributes:
        fill_s: Seconds of a microbatch through all stages, shape [num_rows]; infinite where no cut
            fits.
        longest_s: Seconds of a microbatch on the longest stage, shape [num_rows].
    """

    fill_s: FloatArray
    longest_s: FloatArray

    def steps_s(self, microbatches: FloatArray) -> FloatArray:
        """Seconds of the microbatches of a step, shape [num_rows]."""
        return self.fill_s + (microbatches - 1) * self.longest_s


class Chain:
    """Layers of a module, for one shape and row.

    Attributes:
        again: Kinds of the layers that can be computed again, in their order.

    Args:
        tables: All layers.
        layers: Numbers of those that the module computes.
    """

    def __init__(self, tables: Tables, layers: Sequence[int]) -> None:
        self.tables = tables
        self.numbers = numpy.array(layers)
        self.kinds: IntArray = tables.kind[self.numbers]
        self.layers_of_kind = tables.count(layers)
        decoder = tables.block & ~tables.vision
        self._decoder = decoder & (self.layers_of_kind > 0)
        self._in_front = tables.vision & (self.layers_of_kind == 0)
        self.heaviest_share = tables.heaviest_share(layers)
        repeats = tables.block & tables.gradient
        if not tables.share.has_inputs:
            repeats = repeats & ~tables.vision
        self._repeats = repeats[self.kinds]
        self.again = self.kinds[self._repeats]
        self.num_blocks = int(self.layers_of_kind[self._decoder].sum())

    def bounds(
        self,
        costs: Costs,
        *,
        stages: int,
        microbatches: FloatArray,
        memory_bytes: float,
        other_bytes: float,
        levels: Sequence[Level],
    ) -> Bounds:
        """Lower bounds of the times of any cut into several stages.

        A stage with f microbatches in flight has room for at most floor(memory / (state + f kept))
        of the decoder's blocks, of the smallest kind and without anything else. If all stages
        together have no room for all blocks without recomputation, the rest are recomputed.
        """
        states = costs.states.sum(0)
        kept = costs.kept[:, :, self._decoder].min(2)[:, :, None]
        again = [LEVELS.index(level) for level in levels if level != "none"]
        behind = stages - numpy.arange(stages)
        in_flight = numpy.minimum(microbatches[:, None], behind)[:, None]
        room = memory_bytes // (states[self._decoder].min() + in_flight * kept)
        rooms = room.sum(2)
        all_room = rooms[:, 0] if "none" in levels else 0 * rooms[:, 0]
        most_room = rooms[:, again].max(1) if again else all_room
        pass_s = costs.forward.sum(1) + costs.backward.sum(1)
        again_s = costs.again[:, again or [0]][:, :, self._decoder].min((1, 2))
        recomputed = numpy.maximum(0.0, self.num_blocks - all_room)
        fill_s = pass_s @ self.layers_of_kind + recomputed * again_s
        fits = (most_room >= self.num_blocks) & (
            states @ self.layers_of_kind <= stages * (memory_bytes - other_bytes)
        )
        longest_s = numpy.maximum(
            math.ceil(self.num_blocks / stages) * pass_s[:, self._decoder].min(1),
            pass_s[:, self.layers_of_kind > 0].max(1),
        )
        longest_s = numpy.maximum(longest_s, fill_s / stages)
        return Bounds(numpy.where(fits, fill_s, numpy.inf), longest_s)

    def first_blocks(self, number: int) -> IntArray:
        """Layers of each kind among the first blocks that can be computed again, shape [num_kinds].

        Args:
            number: Number of the blocks.
        """
        return numpy.bincount(self.again[:number], minlength=len(self.tables.first))

    def cut(
        self,
        costs: Costs,
        shape: Shape,
        row: Row,
        *,
        microbatches: int,
        memory_bytes: int,
        other_bytes: int,
        link_bytes_per_s: float,
        rows_bytes: float,
        rows_s: float,
        levels: Sequence[Level],
        whole_encoders: bool = False,
    ) -> Partition | None:
        """The best cut into the stages of the shape, or None if none fits.

        Args:
            costs: Of the layers, for one row.
            shape: The mesh.
            row: What a microbatch has.
            microbatches: Microbatches of a replica per step.
            memory_bytes: What a rank may use.
            other_bytes: As for `partition`.
            link_bytes_per_s: Rate from a stage to the next.
            rows_bytes: Rows of the encoder that the first stage holds for each microbatch in
                flight, and once more as gradients.
            rows_s: Seconds in which the first stage receives rows of a microbatch, and in which it
                sends their gradients.
            levels: Levels of recomputation to choose from.
            whole_encoders: Whether the first stage has all layers in front of the decoder's blocks,
                and the last one all behind them.
        """
        layers = self._layers(costs, shape, row, rows_bytes, rows_s, microbatches)
        try:
            return partition(
                layers,
                stages=shape.mesh.pp,
                microbatches=microbatches,
                memory_bytes=memory_bytes,
                other_bytes=other_bytes,
                link_bytes_per_s=link_bytes_per_s,
                levels=levels,
                ends=self._ends if whole_encoders else (1, 1),
            )
        except NoPartitionError:
            return None

    @property
    def _ends(self) -> tuple[int, int]:
        """Layers in front of the decoder's blocks, and behind them."""
        blocks = numpy.flatnonzero(self._decoder[self.kinds])
        return int(blocks[0]), len(self.kinds) - 1 - int(blocks[-1])

    def _layers(
        self,
        costs: Costs,
        shape: Shape,
        row: Row,
        rows_bytes: float,
        rows_s: float,
        microbatches: int,
    ) -> Layers:
        kinds, tables = self.kinds, self.tables
        states = costs.states.sum(0)[kinds]
        kept = costs.kept[0][:, kinds]
        # The last stage has one microbatch in flight, and so the logits of one. The first has this
        # many, and gradients of the rows of one.
        in_flight = min(microbatches, shape.mesh.pp)
        kept[:, -1] += costs.working.head[0]
        kept[:, 0] += rows_bytes * (in_flight + 1) / in_flight
        again = costs.again[0][:, kinds]
        forward_s, backward_s = costs.forward[0].sum(0)[kinds], costs.backward[0].sum(0)[kinds]
        forward_s[0] += rows_s
        if tables.gradient[self._in_front].any():
            backward_s[0] += rows_s
        # Whether a layer has a backward pass is in its times and sizes already; gradients that only
        # pass through frozen layers are too.
        has_backward = numpy.logical_or.accumulate(tables.gradient[kinds])
        return Layers.of(
            forward_s=forward_s,
            backward_input_s=backward_s,
            backward_weight_s=0.0 * forward_s,
            trained=has_backward,
            state_bytes=_whole(states),
            activation_bytes=_whole(kept),
            recompute_s=again,
            output_bytes=_whole(self._output_bytes(shape, row)),
            taps=self._taps(shape, row),
        )

    def _output_bytes(self, shape: Shape, row: Row) -> FloatArray:
        """Bytes that each layer passes on."""
        tables, mesh = self.tables, shape.mesh
        model, itemsize = tables.model, tables.work.itemsize
        part = numpy.array([model.layers[number].part for number in self.numbers])
        text = itemsize * row.tokens * model.width / (mesh.tp * mesh.cp)
        found = numpy.full(len(part), text)
        for place, tokens in enumerate(row.encoded):
            own = tables.encoder[self.kinds] == place
            tower_tokens = tables.inputs(place, tokens).vision_tokens
            tower = itemsize * tower_tokens * model.encoders[place].width / mesh.tp
            found[own & (part == "encoder")] = tower
            found[own & (part == "projector")] = itemsize * tokens * model.width / mesh.tp
            if place + 1 < len(model.encoders):
                # The next layer, of another encoder, does not read it: a far input has it.
                found[self.numbers == model.encoders[place].end - 1] = 0.0
        return found

    def _taps(self, shape: Shape, row: Row) -> list[Tap]:
        """Outputs that layers further behind read.

        Those from in front of the chain arrive at its first stage.
        """
        tables, mesh = self.tables, shape.mesh
        place = {int(number): position for position, number in enumerate(self.numbers)}
        found = []
        for far in tables.model.far_inputs:
            source, target = place.get(far.source, 0), place.get(far.target)
            if target is not None and source < target:
                encoder = int(tables.encoder[tables.kind[far.source]])
                units = tables.inputs(encoder, row.encoded[encoder])._asdict()
                size = tables.work.itemsize * units[far.unit] * far.values / mesh.tp
                found.append(Tap(source=source, target=target, bytes=math.ceil(size)))
        return found

    def recomputed_kinds(self, stage: StageLayout) -> IntArray:
        """Blocks of each kind that a stage computes again, shape [num_kinds]."""
        own = slice(stage.first, stage.end)
        blocks = self.kinds[own][self._repeats[own]][: stage.recompute_layers]
        if stage.recompute == "none":
            blocks = blocks[:0]
        return numpy.bincount(blocks, minlength=len(self.tables.first))

    def stage_kinds(self, ends: Sequence[int]) -> list[IntArray]:
        """Layers of each kind on each stage, each of shape [num_kinds].

        Args:
            ends: Position of the layer behind each stage.
        """
        starts = [0, *ends[:-1]]
        width = len(self.tables.first)
        return [
            numpy.bincount(self.kinds[first:end], minlength=width)
            for first, end in zip(starts, ends, strict=True)
        ]


def _whole(sizes: FloatArray) -> IntArray:
    return numpy.ceil(sizes).astype(numpy.int64)
