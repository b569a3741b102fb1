"""The minimum number of microbatch slots that hold a step, and the schedule in them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from flowtrain.packing.sizes import INT_LIMIT
from flowtrain_core import FlowTrainError
from flowtrain_core.packing import Assignment, NoRoomError, schedule
from flowtrain_core.packing.interface import Objective


class PackingError(FlowTrainError, ValueError):
    """Samples cannot be packed as asked; the message names the sample or the argument."""


def fewest_slots(
    tokens: Sequence[int],
    cost: Sequence[float],
    *,
    ranks: int,
    max_tokens: int,
    objective: Objective = "accumulate",
    min_slots: int = 1,
) -> Assignment:
    """Schedule a step in the minimum number of slots in which the scheduler finds room.

    Args:
        tokens: Tokens of each sample, shape [num_samples].
        cost: Cost of each sample in any unit, shape [num_samples].
        ranks: Data-parallel ranks; all have the same number of slots.
        max_tokens: Maximum tokens of one slot of one rank.
        objective: What to minimize. The default is the cost of the slowest rank, for ranks that
            meet only at the end of a step.
        min_slots: Number of slots to try first. More slots than needed leave room for balance.

    Returns:
        A schedule of all samples with its proven bound. Equal input gives an equal schedule.

    Raises:
        PackingError: A sample is longer than max_tokens, or a number is not whole or too small.
        ValueError: Another argument is invalid.
    """
    ranks, max_tokens = checked_int(ranks, "ranks"), checked_int(max_tokens, "max_tokens")
    for index, length in enumerate(tokens):
        if length > max_tokens:
            raise PackingError(
                f"sample {index} of the step: {length} tokens exceed max_tokens={max_tokens}; "
                "raise it (train.microbatch_tokens of a run) or drop the sample"
            )
    slots = max(min_slots, -(-sum(tokens) // (ranks * max_tokens)))
    while True:
        try:
            return schedule(
                tokens,
                cost,
                ranks=ranks,
                microbatches=slots,
                max_tokens=max_tokens,
                objective=objective,
            )
        except NoRoomError:
            # The loop ends: one slot per sample always suffices.
            slots += 1


def checked_int(value: Any, name: str, *, minimum: int = 1) -> int:
    """Convert an integer of any type to `int`.

    Raises:
        PackingError: The value is no integer, below `minimum`, or not below 2^62.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise PackingError(f"{name}={value!r}: it must be a whole number") from None
    if not minimum <= number < INT_LIMIT:
        raise PackingError(f"{name}={number}: it must be at least {minimum} and below 2^62")
    return number
