"""The fewest microbatch slots that hold a step, and the best schedule in them."""

from __future__ import annotations

from collections.abc import Sequence

from flowtrain_core.packing import Assignment, schedule


class PackingError(ValueError):
    """A sample cannot be packed; the message names it and the limit."""


def fewest_slots(
    tokens: Sequence[int], cost: Sequence[float], *, ranks: int, token_cap: int
) -> Assignment:
    """Lay a step out in the fewest slots that the scheduler finds room in.

    Ranks of one world meet at the end of a step and not in between, so what is made small is
    the cost of the slowest rank.

    Args:
        tokens: Tokens of each sample, shape [num_samples].
        cost: Cost of each sample in any unit, shape [num_samples].
        ranks: Data-parallel ranks; each gets the same number of slots.
        token_cap: Most tokens of one slot of one rank.

    Returns:
        A schedule of every sample with its proven bound, the same for every caller with the same
        input.

    Raises:
        PackingError: A sample is longer than token_cap.
    """
    for index, length in enumerate(tokens):
        if length > token_cap:
            raise PackingError(
                f"sample {index} of the step: {length} tokens exceed token_cap={token_cap}; "
                "raise train.microbatch_tokens or leave the sample out"
            )
    slots = max(1, -(-sum(tokens) // (ranks * token_cap)))
    while True:
        try:
            return schedule(
                tokens,
                cost,
                ranks=ranks,
                microbatches=slots,
                token_cap=token_cap,
                objective="free",
            )
        except ValueError:
            # A slot for each sample holds them all: then it was not the room that lacked.
            if slots >= len(tokens):
                raise
            slots += 1
