"""What the loader asks of the two kinds of data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from flowtrain.packing import Microbatch, PackingError, StepShape

Oversize = Literal["error", "leave_out"]
"""What to do with a sample above the cap."""

Place = dict[str, Any]
"""Where loading goes on: plain numbers, but for what a stream says of itself."""

Loaded = tuple[Any, Microbatch]
"""A batch, and what it is."""


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
        left_out: Samples above the cap that were left out.
        made_with: What must be equal for a place to mean the same.
    """

    left_out: list[int]
    made_with: dict[str, Any]

    def start(self, epoch: int) -> Place:
        """The place before an epoch's first batch."""
        ...

    def load(self, place: Place) -> Iterator[Loaded]:
        """The rest of an epoch."""
        ...

    def __len__(self) -> int:
        """Batches of an epoch.

        Raises:
            TypeError: Their number is not known before they are loaded.
        """
        ...


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
