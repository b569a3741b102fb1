"""The best partition by enumeration of all cuts and all levels, without FlowTrain's solver."""

from __future__ import annotations

import functools
import itertools
import math

import numpy

from flowtrain.plan.partition import LEVELS, Layers


def stage_options(
    layers: Layers,
    first: int,
    end: int,
    *,
    in_flight: int,
    memory_bytes: int,
    other_bytes: int,
    link_bytes_per_s: float,
) -> list[float]:
    """Seconds of a stage by level, infinite if the level does not fit."""
    trains = [any(layers.trained[: layer + 1]) for layer in range(len(layers))]
    found = []
    for level in range(len(LEVELS)):
        seconds, state, size, running = 0.0, 0, 0, 0
        for layer in range(first, end):
            state += int(layers.state_bytes[layer])
            whole = int(layers.activation_bytes[0, layer])
            seconds += layers.forward_s[layer]
            if layers.trained[layer]:
                seconds += layers.backward_weight_s[layer]
            if trains[layer]:
                seconds += layers.backward_input_s[layer] + layers.recompute_s[level, layer]
                size += in_flight * int(layers.activation_bytes[level, layer])
                running = max(running, whole - int(layers.activation_bytes[level, layer]))
            else:
                running = max(running, whole)
        for cut, gradients in ((end - 1, False), (first - 1, True)):
            if not 0 <= cut < len(layers) - 1 or (gradients and not trains[cut]):
                continue
            sent = int(layers.output_bytes[cut])
            for tap in layers.taps:
                if tap.source <= cut < tap.target and (trains[tap.source] or not gradients):
                    sent += tap.bytes
            seconds += sent / link_bytes_per_s
        fits = state + max(size + running, other_bytes) <= memory_bytes
        found.append(seconds if fits else math.inf)
    return found


def best_step_s(
    layers: Layers,
    *,
    stages: int,
    microbatches: int,
    memory_bytes: int,
    other_bytes: int,
    link_bytes_per_s: float,
) -> float:
    """The minimum over all cuts and all levels of each stage, infinite if nothing fits."""

    @functools.cache
    def options(number: int, first: int, end: int) -> list[float]:
        return stage_options(
            layers,
            first,
            end,
            in_flight=min(microbatches, stages - number),
            memory_bytes=memory_bytes,
            other_bytes=other_bytes,
            link_bytes_per_s=link_bytes_per_s,
        )

    choices = numpy.array(list(itertools.product(range(len(LEVELS)), repeat=stages)))
    best = math.inf
    for cuts in itertools.combinations(range(1, len(layers)), stages - 1):
        spans = zip((0, *cuts), (*cuts, len(layers)), strict=True)
        table = [options(number, first, end) for number, (first, end) in enumerate(spans)]
        seconds = numpy.array(table)[numpy.arange(stages), choices]
        seconds = seconds[numpy.isfinite(seconds).all(axis=1)]
        values = seconds.sum(axis=1) + (microbatches - 1) * seconds.max(axis=1)
        best = min(best, float(values.min(initial=math.inf)))
    return best
