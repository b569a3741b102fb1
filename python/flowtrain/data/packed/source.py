"""What the loader asks of the two kinds of data sets."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, get_args

from flowtrain.packing import FormedStep, Microbatch, PackingError, StepShape

Oversize = Literal["error", "leave_out"]
"""What to do with a sample above the cap."""

Place = dict[str, Any]
"""Where loading goes on: plain numbers, but for what a stream says of itself."""


class StreamPosition(NamedTuple):
    """Identifies a sample of a stream.

    Attributes:
        epoch: The epoch in which it was read.
        worker: The worker that read it; 0 where this process reads.
        position: Its number among the samples of that worker in that epoch, from 0.
    """

    epoch: int
    worker: int
    position: int


class Loaded(NamedTuple):
    """A batch as a source hands it on.

    Attributes:
        batch: The batch.
        microbatch: What it is.
        step: Its step, of all ranks.
        content: Checksum of what had been read of a stream for its step; 0 where sizes are known.
    """

    batch: Any
    microbatch: Microbatch
    step: FormedStep
    content: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Loading:
    """What both kinds are loaded by.

    Attributes:
        shape: What a step is.
        rank: Whose microbatches are loaded.
        leave_out: Whether samples above the cap are left out.
        collate: From the samples of a microbatch to its batch.
        options: Of the `DataLoader`, with `num_workers` and `generator`.
    """

    shape: StepShape
    rank: int
    leave_out: bool
    collate: Callable[[list[Any]], Any]
    options: dict[str, Any]


class Source(Protocol):
    """Microbatches of one rank from any place on.

    Attributes:
        planned_ahead: Whether all sizes are known, so that ranks whose first steps agree have the
            same ones throughout.
        order: What decides which samples are used up at the end of a step: equal where a place
            there is to mean the same.
        plan: What decides where the samples of a step go: equal as well within a step.
    """

    planned_ahead: bool
    order: dict[str, Any]
    plan: dict[str, Any]

    @property
    def left_out(self) -> list[int] | list[StreamPosition]:
        """Samples above the cap that were left out: indices, or positions in a stream."""
        ...

    def start(self, epoch: int) -> Place:
        """The place before an epoch's first batch."""
        ...

    def load(self, place: Place) -> Generator[Loaded]:
        """The rest of an epoch."""
        ...

    def ended(self, place: Place) -> bool:
        """Whether it is known that no batch follows in the epoch."""
        ...

    def __len__(self) -> int:
        """Batches of an epoch.

        Raises:
            TypeError: Their number is not known before they are loaded.
        """
        ...


def order_of(shape: StepShape) -> dict[str, Any]:
    """What of a shape decides which samples a step can have, whatever the ranks are."""
    if shape.max_age == 0:
        return {"max_age": 0, "step_samples": shape.samples}
    assert shape.microbatches is not None
    # Samples that wait are sure to fit into bins of the same number and size.
    bins = shape.ranks * shape.microbatches
    return {
        "max_age": shape.max_age,
        "window": shape.window,
        "token_cap": shape.token_cap,
        "step_bins": bins,
    }


def leaves_out(oversize: Oversize) -> bool:
    """Whether samples above the cap are left out.

    Raises:
        PackingError: There is no such choice.
    """
    choices = get_args(Oversize)
    if oversize not in choices:
        raise PackingError(f"oversize '{oversize}': choose from {', '.join(choices)}")
    return oversize == choices[1]


def too_long(key: int, tokens: int, token_cap: int) -> PackingError:
    """What is said of a sample above the cap."""
    return PackingError(
        f"sample {key}: {tokens} tokens exceed token_cap={token_cap}; raise token_cap, or leave "
        "such samples out with oversize='leave_out'"
    )
