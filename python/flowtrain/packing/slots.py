"""The fewest microbatch slots that hold a step, and the best schedule in them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from flowtrain.packing.sizes import WHOLE_LIMIT
from flowtrain_core.packing import Assignment, NoRoomError, schedule
from flowtrain_core.packing.interface import Objective


class PackingError(ValueError):
    """A sample cannot be packed; the message names it and the limit."""


def fewest_slots(
    tokens: Sequence[int],
    cost: Sequence[float],
    *,
    ranks: int,
    token_cap: int,
    objective: Objective = "free",
    least: int = 1,
) -> Assignment:
    """Lay a step out in the fewest slots that the scheduler finds room in.

    Args:
        tokens: Tokens of each sample, shape [num_samples].
        cost: Cost of each sample in any unit, shape [num_samples].
        ranks: Data-parallel ranks; each gets the same number of slots.
        token_cap: Most tokens of one slot of one rank.
        objective: What to make small: by default the cost of the slowest rank, since ranks of
            one world meet at the end of a step and not in between.
        least: Slots to begin with, so that balance has room.

    Returns:
        A schedule of every sample with its proven bound, the same for every caller with the same
        input.

    Raises:
        PackingError: A sample is longer than token_cap, or a number is not whole or too small.
        ValueError: Another argument that cannot be.
    """
    ranks, token_cap = whole(ranks, "ranks", least=1), whole(token_cap, "token_cap", least=1)
    for index, length in enumerate(tokens):
        if length > token_cap:
            raise PackingError(
                f"sample {index} of the step: {length} tokens exceed token_cap={token_cap}; "
                "raise it (train.microbatch_tokens of a run) or leave the sample out"
            )
    slots = max(least, -(-sum(tokens) // (ranks * token_cap)))
    while True:
        try:
            return schedule(
                tokens,
                cost,
                ranks=ranks,
                microbatches=slots,
                token_cap=token_cap,
                objective=objective,
            )
        except NoRoomError:
            # It ends: a slot for each sample holds them all.
            slots += 1


def whole(value: Any, name: str, *, least: int) -> int:
    """A number of ours, as Python's own.

    Raises:
        PackingError: It is not whole, below `least`, or not below 2^62.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise PackingError(f"{name}={value!r}: it must be a whole number") from None
    if not least <= number < WHOLE_LIMIT:
        raise PackingError(f"{name}={number}: it must be at least {least} and below 2^62")
    return number
