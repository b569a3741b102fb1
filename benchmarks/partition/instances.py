"""Models to cut: times and sizes that look like those of a GPU, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
from numpy.random import Generator

from flowtrain.plan.partition import Layers, Tap

KINDS = ("decoder", "trained", "frozen", "random")
"""A decoder with embedding and head; a VLM with deepstack whose encoder trains, or is frozen; and
layers that have nothing in common."""

_LINK_BYTES_PER_S = 25e9


@dataclass(frozen=True, slots=True)
class Instance:
    """Layers, and the arguments of `partition`."""

    layers: Layers
    arguments: dict[str, Any]


def instance(
    kind: str, *, layers: int, stages: int, seed: int, microbatches: int | None = None
) -> Instance:
    """Draw a model, a number of microbatches and a memory that some partitions do not fit.

    The memory is between 0.9 and 2.5 times what an even share of the model needs if it recomputes
    everything; where that is too little, nothing fits. Other modules need up to a third of it.
    """
    random = numpy.random.default_rng([KINDS.index(kind), layers, stages, seed])
    made = _random(random, layers) if kind == "random" else _model(random, layers, kind)
    if microbatches is None:
        microbatches = int(2 ** random.uniform(0, 6))
    saved = made.saved_bytes()[2].sum() * min(stages, microbatches)
    even = (made.state_bytes.sum() + saved) / stages + made.activation_bytes[0].max()
    memory_bytes = int(even * random.uniform(0.9, 2.5))
    return Instance(
        made,
        {
            "stages": stages,
            "microbatches": microbatches,
            "memory_bytes": memory_bytes,
            "link_bytes_per_s": _LINK_BYTES_PER_S * random.uniform(0.25, 4),
            "other_bytes": int(memory_bytes * random.uniform(0, 0.33)),
        },
    )


def _model(random: Generator, count: int, kind: str) -> Layers:
    """A decoder behind an embedding and in front of a head; of a VLM, an encoder before them."""
    encoder = 0 if kind == "decoder" else count // 3
    decoder = count - encoder
    jitter = random.uniform(0.97, 1.03, count)
    forward = numpy.concatenate(
        [
            numpy.full(encoder, random.uniform(0.3, 4)),
            numpy.full(decoder, random.uniform(4, 8)),
        ]
    )
    # The embedding is part of the first layer of the decoder, the head of the last one.
    forward[-1] += random.uniform(0, 8)
    forward *= 1e-3 * jitter
    weights = numpy.concatenate(
        [
            numpy.full(encoder, random.uniform(2e7, 8e7)),
            numpy.full(decoder, random.uniform(1e8, 4e8)),
        ]
    )
    weights[encoder] += 5e8
    weights[-1] += 5e8
    trained = numpy.arange(count) >= (encoder if kind == "frozen" else 0)
    output = numpy.concatenate([numpy.full(encoder, 30e6), numpy.full(decoder, 60e6)])
    whole = output * random.uniform(12, 24)
    taps = []
    if encoder >= 4:
        rows = int(random.uniform(0.3, 0.9) * 60e6)
        taps = [
            Tap(source=encoder * (number + 1) // 4, target=encoder + number, bytes=rows)
            for number in range(3)
        ]
    return Layers.of(
        forward_s=forward,
        backward_input_s=forward,
        backward_weight_s=forward * random.uniform(0.8, 1),
        trained=trained,
        state_bytes=(weights * numpy.where(trained, 8, 2)).astype(int),
        activation_bytes=numpy.array([whole, 0.6 * whole, output]).astype(int),
        recompute_s=numpy.array([0 * forward, 0.1 * forward, forward]),
        output_bytes=output.astype(int),
        taps=taps,
    )


def _random(random: Generator, count: int) -> Layers:
    """Layers that have nothing in common; some of the first ones are frozen, and others."""
    trained = (numpy.arange(count) >= random.integers(0, count // 2 + 1)) & (
        random.random(count) < 0.8
    )
    whole = random.uniform(1e8, 2e9, count)
    taps = []
    for _ in range(3):
        source, target = sorted(random.choice(count, 2, replace=False))
        taps.append(
            Tap(source=int(source), target=int(target), bytes=int(random.uniform(1e6, 1e8)))
        )
    forward = random.uniform(1e-4, 1e-2, count)
    return Layers.of(
        forward_s=forward,
        backward_input_s=random.uniform(1e-4, 1e-2, count),
        backward_weight_s=random.uniform(1e-4, 1e-2, count),
        trained=trained,
        state_bytes=random.uniform(1e8, 4e9, count).astype(int),
        activation_bytes=(whole * numpy.array([[1], [0.6], [0.1]])).astype(int),
        recompute_s=forward * numpy.array([[0], [0.2], [1]]),
        output_bytes=random.uniform(1e6, 1e8, count).astype(int),
        taps=taps,
    )
