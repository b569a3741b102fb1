"""Time and memory of every stage that a partition can have."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from flowtrain.plan.arrays import FloatArray, IntArray
from flowtrain.plan.partition.layers import LEVELS, Layers, Level


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Consecutive layers on one pipeline rank.

    Attributes:
        first: Number of its first layer.
        end: Number of the first layer behind it.
        level: What it recomputes.
        forward_s: Seconds of a microbatch's forward pass.
        backward_s: Seconds of the backward pass, recomputation included.
        forward_send_s: Seconds to send activations to the next stage.
        backward_send_s: Seconds to send gradients to the previous stage.
        in_flight: Microbatches whose activations it holds at the same time.
        memory_bytes: Peak of its memory, other modules included.
        free_bytes: Memory that is left.
    """

    first: int
    end: int
    level: Level
    forward_s: float
    backward_s: float
    forward_send_s: float
    backward_send_s: float
    in_flight: int
    memory_bytes: int
    free_bytes: int

    @property
    def seconds(self) -> float:
        """Time that a microbatch occupies the stage: passes, recomputation and sends."""
        return self.forward_s + self.backward_s + self.forward_send_s + self.backward_send_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """What to cut, and the pipeline that runs it.

    Attributes:
        layers: The layers.
        stages: Number of pipeline stages.
        microbatches: Microbatches per step.
        memory_bytes: Memory of one stage.
        other_bytes: Memory that other modules need on the same devices while a stage holds its
            states alone: before the first microbatch of a step, and behind the last one.
        link_bytes_per_s: Rate at which a stage sends to its neighbour.
        levels: Levels of recomputation that a stage may choose from.
        ends: Layers that the first of several stages, and the last one, have at least.
    """

    layers: Layers
    stages: int
    microbatches: int
    memory_bytes: int
    other_bytes: int = 0
    link_bytes_per_s: float
    levels: Sequence[Level]
    ends: tuple[int, int] = (1, 1)

    def in_flight(self, stage: int) -> int:
        """Microbatches that a stage holds under 1F1B: it runs this many forward passes ahead."""
        return min(self.microbatches, self.stages - stage)


class StageTable:
    """Every stage of a problem: which layers it can hold, in what time, and in what memory.

    Stage s holds at least one layer and leaves one to each other stage. So it begins at a layer
    s + a and ends before a layer s + 1 + b, with 0 <= a <= b < `width`.

    Attributes:
        problem: What to cut.
        width: Number of layers that a stage can begin at.
        seconds: Time of each stage at the cheapest level that fits, infinite where none does, shape
            [stages, width, width], indices s, a, b.
    """

    def __init__(self, problem: Problem) -> None:
        layers = problem.layers
        self.problem = problem
        self.width = len(layers) - problem.stages + 1
        self._pass_s = numpy.array([layers.forward_s, layers.backward_s()])
        self._extra_s = layers.extra_s()
        self._saved_bytes = layers.saved_bytes()
        # A layer holds all its activations while it runs, also those that it does not keep.
        self._running_bytes = numpy.maximum(layers.activation_bytes[0] - self._saved_bytes, 0)
        forward, backward = layers.cut_bytes()
        self._forward_send_s = forward / problem.link_bytes_per_s
        # By the first layer of the sending stage; the first stage sends no gradients.
        self._backward_send_s = numpy.append(0.0, backward[:-1]) / problem.link_bytes_per_s
        self._levels = [LEVELS.index(level) for level in problem.levels]
        self.seconds = self._seconds()

    def stage_s(self, ends: Sequence[int]) -> list[float]:
        """Time of each stage at the cheapest level that fits, infinite where none does.

        Args:
            ends: Number of the layer behind each stage.
        """
        return [
            float(self.seconds[number, first - number, end - 1 - number])
            for number, first, end in _spans(ends)
        ]

    def step_s(self, ends: Sequence[int]) -> float:
        """Sum of the stage times plus (microbatches - 1) times the longest.

        Infinite if a stage does not fit.
        """
        seconds = self.stage_s(ends)
        if math.inf in seconds:
            return math.inf
        return sum(seconds) + (self.problem.microbatches - 1) * max(seconds)

    def _seconds(self) -> FloatArray:
        count = len(self.problem.layers)
        passes_s = self._pass_s.sum(axis=0)
        sends_s = self._backward_send_s[:, None] + self._forward_send_s
        of_level = {}
        for level in self._levels:
            of_level[level] = _sums(passes_s + self._extra_s[level]) + sends_s
            of_level[level][numpy.tri(count, k=-1, dtype=bool)] = numpy.inf
        found = numpy.full((self.problem.stages, self.width, self.width), numpy.inf)
        for stage, level, need in self._memory():
            fits = need <= self.problem.memory_bytes
            seconds = numpy.where(fits, of_level[level][self._window(stage)], numpy.inf)
            numpy.minimum(found[stage], seconds, out=found[stage])
        return self._with_ends(found)

    def least_bytes(self) -> FloatArray:
        """Memory of each stage at the level that needs the least, infinite where b < a.

        Shape [stages, width, width], indices s, a, b.
        """
        found = numpy.full((self.problem.stages, self.width, self.width), numpy.inf)
        for stage, _, need in self._memory():
            numpy.minimum(found[stage], need, out=found[stage])
        found[:, numpy.tri(self.width, k=-1, dtype=bool)] = numpy.inf
        return self._with_ends(found)

    def _with_ends(self, found: FloatArray) -> FloatArray:
        """Values of the stages, infinite where the first or the last one has too few layers."""
        first, last = self.problem.ends
        if self.problem.stages > 1:
            found[0, :, : first - 1] = numpy.inf
            found[-1, max(0, self.width - last + 1) :] = numpy.inf
        return found

    def _memory(self) -> Iterator[tuple[int, int, IntArray]]:
        """Stage, level, and memory of the stage at this level, shape [width, width]."""
        state = _sums(self.problem.layers.state_bytes)
        for level in self._levels:
            fixed = state + _maxima(self._running_bytes[level])
            saved = _sums(self._saved_bytes[level])
            for stage in range(self.problem.stages):
                window = self._window(stage)
                need = fixed[window] + self.problem.in_flight(stage) * saved[window]
                yield stage, level, numpy.maximum(need, state[window] + self.problem.other_bytes)

    def _window(self, stage: int) -> tuple[slice, slice]:
        """The first and last layers of one stage in a table [num_layers, num_layers]."""
        layers = slice(stage, stage + self.width)
        return layers, layers

    def options(self, number: int, first: int, end: int) -> list[Stage]:
        """A stage of these layers at each level, whether it fits or not."""
        within = slice(first, end)
        in_flight = self.problem.in_flight(number)
        found = []
        for level in self._levels:
            forward_s, backward_s = self._pass_s[:, within].sum(axis=1)
            passes = (
                in_flight * self._saved_bytes[level, within].sum()
                + self._running_bytes[level, within].max()
            )
            state = self.problem.layers.state_bytes[within].sum()
            memory_bytes = int(state + max(passes, self.problem.other_bytes))
            found.append(
                Stage(
                    first=first,
                    end=end,
                    level=LEVELS[level],
                    forward_s=float(forward_s),
                    backward_s=float(backward_s + self._extra_s[level, within].sum()),
                    forward_send_s=float(self._forward_send_s[end - 1]),
                    backward_send_s=float(self._backward_send_s[first]),
                    in_flight=in_flight,
                    memory_bytes=memory_bytes,
                    free_bytes=self.problem.memory_bytes - memory_bytes,
                )
            )
        return found

    def stages(self, ends: Sequence[int]) -> list[Stage]:
        """The stages of a partition, each at the cheapest level that fits; one must.

        Args:
            ends: Number of the layer behind each stage.
        """
        return [self._stage(*span) for span in _spans(ends)]

    def _stage(self, number: int, first: int, end: int) -> Stage:
        fitting = [stage for stage in self.options(number, first, end) if stage.free_bytes >= 0]
        return min(fitting, key=lambda stage: stage.seconds)

    def smallest(self, ends: Sequence[int]) -> list[Stage]:
        """The stages of a partition, each at the level that needs the least memory."""
        return [
            min(self.options(*span), key=lambda stage: stage.memory_bytes) for span in _spans(ends)
        ]


def _spans(ends: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Number of each stage, its first layer, and the layer behind it."""
    for number, end in enumerate(ends):
        yield number, ends[number - 1] if number else 0, end


def _sums(values: NDArray[Any]) -> NDArray[Any]:
    """Sum over the layers from first to last, shape [num_layers, num_layers]; first <= last."""
    before = numpy.append(0, values.cumsum())
    return before[1:] - before[:-1, None]


def _maxima(values: IntArray) -> IntArray:
    """Maximum over the layers from first to last, shape [num_layers, num_layers]."""
    return numpy.maximum.accumulate(numpy.triu(values[None].repeat(len(values), 0)), axis=1)
