"""Arguments of a schedule that cannot be, and what is said of them."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from flowtrain_core.packing import NoRoomError, schedule


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": [1, -2, 3]}, r"tokens\[1\]=-2"),
        ({"cost": [1.0, 2.0, float("nan")]}, r"cost\[2\]=nan"),
        ({"cost": [1.0, float("inf"), 0.0]}, r"cost\[1\]=inf"),
        ({"cost": [4, -5, 6]}, r"cost\[1\]=-5"),
        ({"cost": [1 << 61, 1 << 61, 1 << 61]}, r"exceeds 2\^62"),
        ({"tokens": [1, 99, 3]}, r"sample 1: 99 tokens exceed max_tokens=50"),
        ({"tokens": [1, 2]}, "3 samples and tokens 2|tokens has 2"),
        ({"tokens": [[1, 2, 3]]}, r"tokens: shape must be \[num_samples\]"),
        ({"tokens": [1.5, 2, 3]}, "tokens: values must be integers"),
        ({"tokens": [float("nan"), 2, 3]}, "tokens: values must be integers"),
        ({"cost": ["a", "b", "c"]}, "cost: must be numbers"),
        ({"encoder_cost": [1.0]}, "encoder_cost has 1 samples"),
        ({"encoder_cost": [1.0, -1.0, 0.0]}, r"encoder_cost\[1\]=-1"),
        ({"ranks": -3}, "ranks=-3: must be at least 1 and below"),
        ({"microbatches": 2.0}, "microbatches=2.0: must be an integer"),
        ({"ranks": 1 << 20, "microbatches": 1 << 20}, "and their product at most 16777216"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"objective": "fast"}, "objective 'fast': choose from"),
        ({"stages": 2}, "stages=2: objective 'lockstep' has no stages"),
        ({"stages": 0, "objective": "pipeline"}, "stages=0: must be at least 1"),
        (
            {"cost": [1 << 60, 3, 1 << 60], "stages": 2, "objective": "pipeline"},
            r"times stages=2 exceeds",
        ),
        (
            {"objective": "fast", "policy": "arrival"},
            "objective 'fast': choose from lockstep, accumulate",
        ),
        ({"policy": "magic"}, "policy 'magic': choose from"),
        ({"coupling": "loose"}, "coupling 'loose': choose from prepass, slot, rigid"),
        ({"oversize": "skip"}, "oversize 'skip': choose from error, drop"),
        ({"max_age": -1}, "max_age=-1: must be at least 0"),
        ({"max_age": float("nan")}, "max_age=nan: must be an integer"),
        ({"age": [0], "max_age": 1}, "age has 1 samples"),
        (
            {"tokens": [50] * 5, "cost": [1] * 5},
            "5 samples with 250 tokens cannot fit into 2 x 2 bins of max_tokens=50; sample 4",
        ),
    ],
)
def test_what_cannot_be_is_named(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "tokens": [1, 2, 3],
        "cost": [1, 2, 3],
        "ranks": 2,
        "microbatches": 2,
        "max_tokens": 50,
    }
    with pytest.raises(ValueError, match=message):
        schedule(**(good | change))


def test_what_is_too_long_is_dropped_and_listed() -> None:
    plan = schedule(
        [5, 99, 7, 60], [1, 2, 3, 4], ranks=1, microbatches=1, max_tokens=50, oversize="drop"
    )
    assert plan.dropped.tolist() == [1, 3]
    assert plan.slot.tolist() == [0, -1, 0, -1]
    assert plan.carried.tolist() == []


def test_only_what_is_proven_is_said_to_be_impossible() -> None:
    # All tokens are even and the cap is odd, which no search of a few thousand tries proves.
    tokens = 2 * numpy.random.default_rng(2).integers(1, 21, 192)
    cap = (tokens.sum() - 2) // 40 + 1
    tokens[0] += 40 * (cap - 1) + 2 - tokens.sum()
    shape: dict[str, Any] = {"ranks": 40, "microbatches": 1, "max_tokens": int(cap)}
    with pytest.raises(NoRoomError, match=r"no room for 192 samples .* was found in 40 x 1 bins"):
        schedule(tokens, tokens, **shape)
