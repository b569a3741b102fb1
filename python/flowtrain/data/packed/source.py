"""The interface between the loader and its two kinds of data sets."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, get_args

from flowtrain.packing import FormedStep, Microbatch, PackingError, StepShape

Oversize = Literal["error", "drop"]
"""Handling of a sample of more than `max_tokens` tokens."""

Place = dict[str, Any]
"""Where loading continues: plain numbers, and the states of a stream."""


class StreamPosition(NamedTuple):
    """Identifies a sample of a stream.

    Attributes:
        epoch: The epoch in which it was read.
        worker: The worker that read it; 0 if this process reads.
        position: Its number among the samples of this worker in this epoch, from 0.
    """

    epoch: int
    worker: int
    position: int


class Loaded(NamedTuple):
    """A batch and its microbatch.

    Attributes:
        batch: The batch.
        microbatch: Its place in the step, and its weights.
        step: The step of all ranks.
        content: Checksum of the values measured in the stream up to the step; 0 for a map-style
            data set.
    """

    batch: Any
    microbatch: Microbatch
    step: FormedStep
    content: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadConfig:
    """How to load data sets of both kinds.

    Attributes:
        shape: Shape of a step.
        rank: The rank whose microbatches are loaded.
        drop: Whether samples above `max_tokens` are dropped.
        collate: Makes a batch of the samples of a microbatch.
        options: Arguments of the `DataLoader`, with `num_workers` and `generator`.
    """

    shape: StepShape
    rank: int
    drop: bool
    collate: Callable[[list[Any]], Any]
    options: dict[str, Any]


class Source(Protocol):
    """Loads the microbatches of one rank from any place on.

    Attributes:
        planned_ahead: Whether all sizes are known in advance. Ranks that agree on the first step
            then agree on all steps.
        order: Values that decide which samples the steps up to a place contain. Two loaders must
            have the same for the end of a step to mean the same place.
        plan: Values that decide to which rank and microbatch each sample of a step goes. Two
            loaders must have the same as well for a place within a step to mean the same.
    """

    planned_ahead: bool
    order: dict[str, Any]
    plan: dict[str, Any]

    @property
    def dropped(self) -> list[int] | list[StreamPosition]:
        """Samples above `max_tokens` that were dropped: indices, or positions in a stream."""
        ...

    def start(self, epoch: int) -> Place:
        """The place before the first batch of an epoch."""
        ...

    def load(self, place: Place) -> Generator[Loaded]:
        """Yield the batches from a place to the end of its epoch."""
        ...

    def ended(self, place: Place) -> bool:
        """Whether no batch follows in the epoch, as far as is known."""
        ...

    def __len__(self) -> int:
        """Batches of an epoch.

        Raises:
            TypeError: The number is known only after loading.
        """
        ...


def order_of(shape: StepShape) -> dict[str, Any]:
    """The values of a shape that decide which samples a step can have, for any number of ranks."""
    if shape.max_age == 0:
        return {"max_age": 0, "step_samples": shape.samples}
    assert shape.microbatches is not None
    # Waiting samples always fit into bins of the same number and size.
    bins = shape.ranks * shape.microbatches
    return {
        "max_age": shape.max_age,
        "window": shape.window,
        "max_tokens": shape.max_tokens,
        "step_bins": bins,
    }


def parse_oversize(oversize: Oversize) -> bool:
    """Whether samples above `max_tokens` are dropped.

    Raises:
        PackingError: The value is unknown.
    """
    choices = get_args(Oversize)
    if oversize not in choices:
        raise PackingError(f"oversize '{oversize}': choose from {', '.join(choices)}")
    return oversize == "drop"


def too_long_error(key: int, tokens: int, max_tokens: int) -> PackingError:
    """Error for a sample above `max_tokens`."""
    return PackingError(
        f"sample {key}: {tokens} tokens exceed max_tokens={max_tokens}; raise max_tokens, or drop "
        "such samples with oversize='drop'"
    )
