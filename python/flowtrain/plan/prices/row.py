"""A row: what one microbatch of a replica has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """Tokens of a microbatch in the mean, for its time, and at most, for its memory.

    Attributes:
        tokens: Tokens in the mean.
        encoded: Tokens of each encoder in the mean.
        most_tokens: Maximum tokens.
        most_encoded: Maximum tokens of each encoder.
        most_targets: Maximum target tokens.
    """

    tokens: float
    encoded: tuple[float, ...]
    most_tokens: float
    most_encoded: tuple[float, ...]
    most_targets: float
