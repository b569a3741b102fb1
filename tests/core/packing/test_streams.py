"""Samples that may wait: priorities, and the state of a packer."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy
import pytest
from loads import lognormal_step

from flowtrain_core.packing import Packer, schedule


def test_full_streams_keep_ranks_even() -> None:
    packer = Packer(ranks=4, microbatches=4, max_tokens=24000, max_age=1, objective="accumulate")
    tokens, cost = lognormal_step(9, 400)
    for key in range(400):
        packer.add(key, int(tokens[key]), float(cost[key]))
    _, plan = packer.step()
    assert plan.fill > 0.98
    assert plan.gap < 5e-5


def test_samples_wait_until_they_must_go() -> None:
    plan = schedule(
        [40, 40, 40], [9, 9, 9], ranks=1, microbatches=1, max_tokens=50,
        age=[0, 1, 0], max_age=1,
    )  # fmt: skip
    assert plan.slot.tolist() == [-1, 0, -1]
    assert plan.carried.tolist() == [0, 2]
    assert plan.bound == 9
    with pytest.raises(
        ValueError, match="2 samples with 80 tokens cannot fit into 1 x 1 bins of max_tokens=50"
    ):
        schedule(
            [40, 40, 40], [9, 9, 9], ranks=1, microbatches=1, max_tokens=50,
            age=[1, 1, 0], max_age=1,
        )  # fmt: skip


def test_a_sample_of_a_long_slot_waits_for_its_like() -> None:
    packer = Packer(ranks=2, microbatches=2, max_tokens=100, max_age=1)
    for step in range(2):
        for key in range(41):
            packer.add(100 * step + key, 10, 10.0)
        packer.add(100 * step + 99, 95, 900.0)
        keys, plan = packer.step()
        assert plan.fill > 0.96
        where = dict(zip(keys, plan.slot.tolist(), strict=True))
        # Alone it would keep a rank waiting for as long as with its like.
        assert where[99] == (-1, 0)[step]
    assert where[199] == 0
    assert plan.efficiency > 0.99


def stream(packer: Packer, first: int, steps: int) -> list[tuple[int, int, int, int]]:
    """(step, key, slot, rank) of what the steps took, from a stream that is the same each time."""
    tokens, cost = lognormal_step(9, 12000)
    seen = []
    room = int(1.05 * 4 * 4 * 24000)
    for step in range(steps):
        while packer.waiting_tokens < room:
            packer.add(first, int(tokens[first]), float(cost[first]))
            first += 1
        keys, plan = packer.step()
        seen += [
            (step, key, int(slot), int(rank))
            for key, slot, rank in zip(keys, plan.slot, plan.rank, strict=True)
            if slot >= 0
        ]
        assert plan.bin_tokens.max() <= 24000
        assert plan.fill > 0.97
    return seen


def test_a_stream_takes_each_sample_once_and_none_too_late() -> None:
    packer = Packer(ranks=4, microbatches=4, max_tokens=24000, max_age=1)
    seen = stream(packer, 0, 25)
    keys = [key for _, key, _, _ in seen]
    assert len(set(keys)) == len(keys)
    waiting = {row[0]: row[4] for row in packer.state_dict()["waiting"]}
    assert sorted([*keys, *waiting]) == list(range(len(keys) + len(waiting)))
    assert max(waiting.values()) == 1
    # Whoever waited went with the step after.
    assert len(waiting) < 0.2 * len(keys) / 25


def test_a_stream_goes_on_from_its_state() -> None:
    options = {"ranks": 4, "microbatches": 4, "max_tokens": 24000, "max_age": 1}
    packer = Packer(**options)
    stream(packer, 0, 3)
    state = packer.state_dict()
    first = 1 + max(row[0] for row in state["waiting"])
    resumed = Packer(**options)
    resumed.load_state_dict(state)
    assert stream(packer, first, 3) == stream(resumed, first, 3)


@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 4), (8, 2), (4, 4)])
def test_what_must_go_always_fits(ranks: int, microbatches: int) -> None:
    cap = 4096
    tokens = numpy.random.default_rng(1).integers(1, cap + 1, 2500).tolist()
    packer = Packer(ranks=ranks, microbatches=microbatches, max_tokens=cap, max_age=1)
    first, placed = 0, []
    while first < len(tokens) or len(packer):
        while first < len(tokens) and packer.waiting_tokens < 1.05 * ranks * microbatches * cap:
            packer.add(first, tokens[first], float(tokens[first]))
            first += 1
        keys, plan = packer.step()
        placed += [key for key, slot in zip(keys, plan.slot, strict=True) if slot >= 0]
        if first < len(tokens):
            assert plan.fill > 0.25
    assert sorted(placed) == list(range(len(tokens)))


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ((5.7, 1.0), "tokens=5.7: must be an integer"),
        (("5", 1.0), "tokens='5': must be an integer"),
        ((-1, 1.0), "tokens=-1"),
        ((101, 1.0), "tokens=101: more than max_tokens=100; .* oversize='drop'"),
        ((5, math.nan), "cost=nan: must be 0 or more, and finite"),
        ((5, 1.0, -1.0), "encoder_cost=-1.0"),
    ],
)
def test_a_bad_sample_is_refused_and_does_not_stop_the_stream(
    sample: tuple[Any, ...], message: str
) -> None:
    packer = Packer(ranks=1, microbatches=1, max_tokens=100, max_age=1)
    with pytest.raises(ValueError, match=f"sample 7: {message}"):
        packer.add(7, *sample)
    packer.add(8, numpy.int64(5), numpy.float32(1.0))
    json.dumps(packer.state_dict())
    assert packer.step()[0] == [8]
    assert packer.waiting_tokens == 0


def test_a_packer_refuses_options_before_samples() -> None:
    with pytest.raises(TypeError, match="microbatches"):
        Packer(ranks=1, max_tokens=100)


def test_a_sample_as_long_as_the_step_is_placed() -> None:
    packer = Packer(ranks=1, microbatches=1, max_tokens=100, max_age=1)
    for key in range(4):
        packer.add(key, 99 + key % 2, 1.0)
    steps = [packer.step()[1] for _ in range(4)]
    assert [int((plan.slot >= 0).sum()) for plan in steps] == [1] * 4
    assert not len(packer)
    # More than a double counts.
    longest = (1 << 53) + 1
    plan = schedule([longest], [1], ranks=1, microbatches=1, max_tokens=longest, max_age=1)
    assert plan.slot.tolist() == [0]
    # There is a step without a sample only where there is none to be had.
    plan = schedule([101], [1], ranks=1, microbatches=1, max_tokens=100, max_age=1, oversize="drop")
    assert plan.dropped.tolist() == [0]
    assert packer.step()[0] == []
