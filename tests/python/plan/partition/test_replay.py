"""The replay of 1F1B, and the formula that the solver minimizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import pytest

from flowtrain.plan.partition import replay


def simulate(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    forward_send_s: Sequence[float],
    backward_send_s: Sequence[float],
    microbatches: int,
    overlapped: bool,
) -> float:
    """1F1B as lists of passes, each run as soon as its input is there."""
    stages = len(forward_s)
    todo = []
    for stage in range(stages):
        ahead = min(microbatches, stages - stage - 1)
        order = [("forward", number) for number in range(ahead)]
        for number in range(microbatches - ahead):
            order += [("forward", ahead + number), ("backward", number)]
        order += [("backward", number) for number in range(microbatches - ahead, microbatches)]
        todo.append(order)
    arrived = {("forward", 0, number): 0.0 for number in range(microbatches)}
    arrived |= {("backward", stages - 1, number): 0.0 for number in range(microbatches)}
    free, link = [0.0] * stages, dict[tuple[str, int], float]()
    while any(todo):
        for stage, order in enumerate(todo):
            if not order or (order[0][0], stage, order[0][1]) not in arrived:
                continue
            way, number = order.pop(0)
            ahead = way == "forward"
            begin = max(free[stage], arrived[way, stage, number])
            free[stage] = begin + (forward_s if ahead else backward_s)[stage]
            to = stage + 1 if ahead else stage - 1
            if not 0 <= to < stages:
                continue
            send_s = forward_send_s[stage] if ahead else backward_send_s[to]
            begin = max(free[stage], link.get((way, stage), 0.0)) if overlapped else free[stage]
            link[way, stage] = arrived[way, to, number] = begin + send_s
            if not overlapped:
                free[stage] = begin + send_s
    return max(free)


@pytest.mark.parametrize("overlapped", [False, True])
def test_a_replay_takes_as_long_as_lists_of_passes(overlapped: bool) -> None:
    random = numpy.random.default_rng(7)
    for _ in range(150):
        stages, microbatches = int(random.integers(1, 7)), int(random.integers(1, 12))
        forward_s, backward_s = random.uniform(0, 2, (2, stages)).tolist()
        sends_s = random.uniform(0, 2, (2, stages - 1)).tolist()
        found = replay(
            forward_s,
            backward_s,
            microbatches=microbatches,
            forward_send_s=sends_s[0],
            backward_send_s=sends_s[1],
            overlapped=overlapped,
        )
        expected = simulate(forward_s, backward_s, *sends_s, microbatches, overlapped)
        assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("forward_s", "backward_s", "sends_s", "overlapped", "expected"),
    [
        # Equal stages: the formula.
        ([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], 0.0, False, (5 + 2) * 3.0),
        # One stage is one pass after the other.
        ([1.0], [2.0], 0.0, False, 5 * 3.0),
        # The short stage waits, but the first and last microbatch never for the long one.
        ([1.0, 4.0], [1.0, 4.0], 0.0, False, 5 * 8.0 + 2.0),
        # Stages that are busy while they send: 1 + 1 and 2 + 1 a microbatch.
        ([1.0, 1.0], [1.0, 1.0], 1.0, False, 6 + 4 * 3.0),
        # A microbatch returns to the first stage after 1 + 1 + 2 + 1 s, and two are in flight.
        ([1.0, 1.0], [1.0, 1.0], 1.0, True, 6 + 4 * 3.0),
    ],
)
def test_worked_examples_of_five_microbatches(
    forward_s: list[float],
    backward_s: list[float],
    sends_s: float,
    overlapped: bool,
    expected: float,
) -> None:
    sends = [sends_s] * (len(forward_s) - 1)
    found = replay(
        forward_s,
        backward_s,
        microbatches=5,
        forward_send_s=sends,
        backward_send_s=sends,
        overlapped=overlapped,
    )
    assert found == expected


def test_the_formula_is_an_upper_bound_only_if_backward_passes_are_in_proportion() -> None:
    random = numpy.random.default_rng(7)
    for _ in range(300):
        stages, microbatches = int(random.integers(1, 9)), int(random.integers(1, 20))
        forward_s = random.uniform(0, 2, stages)
        found = replay(forward_s.tolist(), (2 * forward_s).tolist(), microbatches=microbatches)
        formula = 3 * (forward_s.sum() + (microbatches - 1) * forward_s.max())
        assert found <= formula * (1 + 1e-12)
    # Stage 1 runs three forward passes, at the pace of stage 0, before its first backward pass.
    frozen = replay([1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], microbatches=8)
    assert (frozen, 2 + 7) == (11.0, 9)


@pytest.mark.parametrize(
    ("forward_s", "backward_s", "sends_s", "microbatches", "message"),
    [
        ([], [], [], 1, "0 stages"),
        ([1.0], [1.0], [], 0, "microbatches=0"),
        ([1.0, 1.0], [1.0], [0.0], 1, "backward_s has 1 stages and forward_s 2"),
        ([1.0, 1.0], [1.0, 1.0], [0.0, 0.0], 1, "for 2 cuts; 2 stages have 1"),
    ],
)
def test_lengths_that_do_not_match_are_refused(
    forward_s: list[float],
    backward_s: list[float],
    sends_s: list[float],
    microbatches: int,
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        replay(forward_s, backward_s, microbatches=microbatches, forward_send_s=sends_s)
