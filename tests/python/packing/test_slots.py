from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowtrain.packing import PackingError, fewest_slots, slots
from flowtrain_core.packing import schedule


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 5), st.integers(50, 120))
def test_no_bin_exceeds_the_cap_and_ranks_get_equal_slots(
    tokens: list[int], ranks: int, cap: int
) -> None:
    made = fewest_slots(tokens, [float(t) for t in tokens], ranks=ranks, max_tokens=cap)
    load: dict[tuple[int, int], int] = {}
    for length, rank, slot in zip(tokens, made.rank, made.slot, strict=True):
        assert 0 <= rank < ranks
        assert 0 <= slot < made.microbatches
        load[rank, slot] = load.get((rank, slot), 0) + length
    assert all(held <= cap for held in load.values())


@pytest.mark.parametrize(
    "cost", list(itertools.combinations_with_replacement([1.0, 2.0, 5.0, 9.0], 5))
)
def test_the_slowest_rank_has_the_minimum_cost(cost: tuple[float, ...]) -> None:
    made = fewest_slots([1] * 5, cost, ranks=2, max_tokens=100)
    assert made.microbatches == 1
    load = [sum(c for c, r in zip(cost, made.rank, strict=True) if r == k) for k in range(2)]
    best = min(
        max(sum(c for c, s in zip(cost, split, strict=True) if s == k) for k in range(2))
        for split in itertools.product(range(2), repeat=5)
    )
    assert max(load) == best
    assert made.bound <= best


@pytest.mark.parametrize("name", ["ranks", "max_tokens"])
def test_an_invalid_number_is_named(name: str) -> None:
    with pytest.raises(PackingError, match=f"{name}=0: it must be at least 1"):
        fewest_slots([], [], **{"ranks": 1, "max_tokens": 1, name: 0})


def test_invalid_arguments_are_not_tried_with_more_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def counted(*args: Any, microbatches: int, **options: Any) -> Any:
        tried.append(microbatches)
        return schedule(*args, microbatches=microbatches, **options)

    monkeypatch.setattr(slots, "schedule", counted)
    with pytest.raises(ValueError, match="cost"):
        fewest_slots([1] * 9, [-1.0] * 9, ranks=1, max_tokens=9)
    assert tried == [1]
