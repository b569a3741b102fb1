"""Allocations that can be worked by hand, and errors."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from flowtrain.plan.allocation import (
    Allocation,
    Candidates,
    NoAllocationError,
    curve,
    next_useful,
    ranked,
    solve,
)


def candidates(**changes: Any) -> Candidates:
    """Microbatches of 8, 4 or 2 s on 1, 2 or 4 GPUs; the first one takes 8 s. No updates."""
    return Candidates(
        **{
            "gpus": [1, 2, 4],
            "microbatch_s": [8.0, 4.0, 2.0],
            "fill_s": 8.0,
            "update_s": 0.0,
            "memory_bytes": [30, 20, 10],
            **changes,
        }
    )


def chosen(found: Allocation) -> list[tuple[str, int]]:
    return [(choice.gpu_type, choice.gpus) for choice in found.choices.values()]


LIMITS: dict[str, Any] = {"gpus": 8, "microbatches": 11, "memory_bytes": 30}


@pytest.mark.parametrize(
    ("gpus", "microbatches", "memory_bytes", "of_each", "step_s"),
    [
        (8, 11, 30, [4, 4], 16 + 10 * 2.0),
        # Four GPUs for one module alone would not shorten the step; they stay idle.
        (7, 11, 30, [2, 2], 16 + 10 * 4.0),
        (4, 11, 30, [2, 2], 16 + 10 * 4.0),
        (3, 11, 30, [1, 1], 16 + 10 * 8.0),
        # One microbatch waits for none.
        (8, 1, 30, [1, 1], 16.0),
        # One GPU has too little memory.
        (8, 1, 20, [2, 2], 16.0),
    ],
)
def test_modules_get_gpus_as_far_as_they_shorten_the_step(
    gpus: int, microbatches: int, memory_bytes: int, of_each: list[int], step_s: float
) -> None:
    offers = {"vision": candidates(), "backbone": candidates()}
    found = solve(offers, gpus=gpus, microbatches=microbatches, memory_bytes=memory_bytes)
    assert [gpus for _, gpus in chosen(found)] == of_each
    assert (found.step_s, found.gpus) == (step_s, sum(of_each))


def test_fill_times_add_up_but_the_longest_microbatch_and_update_count_alone() -> None:
    offers = {
        "vision": candidates(
            gpus=[1], microbatch_s=[3.0], fill_s=5.0, update_s=2.0, memory_bytes=1
        ),
        "audio": candidates(gpus=[1], microbatch_s=[2.0], fill_s=7.0, update_s=4.0, memory_bytes=1),
        "backbone": candidates(gpus=[1], microbatch_s=[1.0], fill_s=9.0, memory_bytes=1),
    }
    found = solve(offers, **LIMITS)
    assert found.step_s == 5 + 7 + 9 + 10 * 3.0 + 4.0
    assert (found.bottleneck, found.rate, found.mismatch) == ("vision", 1 / 3, 1 - 1 / 3)
    assert found.explain().splitlines()[1].endswith("longest")
    assert (found.bound_s, found.gap) == (found.step_s, 0)


def test_an_update_that_is_too_long_is_not_worth_a_faster_microbatch() -> None:
    offers = {"backbone": candidates(update_s=[0.0, 3.0, 50.0])}
    assert chosen(solve(offers, **LIMITS)) == [("gpu", 2)]
    assert chosen(solve(offers, **LIMITS | {"microbatches": 101})) == [("gpu", 4)]


def test_each_type_of_gpu_has_a_budget_and_a_memory_of_its_own() -> None:
    fast, old = (
        candidates(gpu_type="fast", microbatch_s=[4.0, 2.0, 1.0]),
        candidates(gpu_type="old"),
    )
    offers = {"vision": [fast, old], "backbone": [fast]}
    limits = LIMITS | {"gpus": {"fast": 4, "old": 4}}
    # Two fast GPUs are as fast as four old ones.
    assert solve(offers, **limits).step_s == 16 + 10 * 2.0
    limits["gpus"] = {"fast": 2, "old": 4}
    assert chosen(solve(offers, **limits)) == [("old", 4), ("fast", 2)]
    # Without memory on the old ones, the two share the fast ones.
    limits["memory_bytes"] = {"fast": 30, "old": 9}
    assert chosen(solve(offers, **limits)) == [("fast", 1), ("fast", 1)]
    more = next_useful(offers, **limits, gpu_type="fast")
    assert more is not None
    assert chosen(more) == [("fast", 2), ("fast", 2)]
    assert next_useful(offers, **limits, gpu_type="old") is None


def test_the_numbers_that_an_error_names_are_enough_and_no_more() -> None:
    offers = {"vision": candidates(), "backbone": candidates(gpus=[3, 6, 9])}
    limits = LIMITS | {"gpus": 5, "memory_bytes": 20}
    with pytest.raises(NoAllocationError) as error:
        solve(offers, **limits)
    assert str(error.value) == (
        "no allocation fits gpus=5: the modules need at least vision 2, backbone 6, 3 more; raise "
        "gpus to 8, or memory_bytes by 10"
    )
    assert (error.value.gpus, error.value.more_bytes) == (8, 10)
    assert solve(offers, **limits | {"gpus": 8})
    assert solve(offers, **limits | {"memory_bytes": 30})
    for short in ({"gpus": 7}, {"memory_bytes": 29}):
        with pytest.raises(NoAllocationError):
            solve(offers, **limits | short)
    with pytest.raises(NoAllocationError) as error:
        solve(offers, **limits | {"gpus": {"gpu": 3}})
    assert error.value.gpus == {"gpu": 8}
    # More memory does not help here.
    with pytest.raises(NoAllocationError, match="3 more; raise gpus to 4$"):
        solve(offers, **LIMITS | {"gpus": 1})


def test_an_error_names_the_budget_that_lacks_the_fewest_gpus() -> None:
    old = candidates(gpu_type="old", gpus=[5, 6, 7])
    offers = {"vision": [candidates(gpu_type="new"), old], "backbone": [old]}
    with pytest.raises(NoAllocationError, match=r"vision 1 new, backbone 5 old, 2 more; ") as error:
        solve(offers, **LIMITS | {"gpus": {"new": 0, "old": 4}})
    assert error.value.gpus == {"new": 1, "old": 5}


def test_a_module_that_never_fits_names_its_smallest_candidate() -> None:
    offers = {"vision": candidates(), "backbone": candidates(memory_bytes=[90, 70, 80])}
    message = "module 'backbone': none of its 3 candidates fits memory_bytes=30; the smallest needs"
    with pytest.raises(NoAllocationError, match=message) as error:
        solve(offers, **LIMITS)
    assert error.value.more_bytes == 40
    assert solve(offers, **LIMITS | {"memory_bytes": 70})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": []}, "gpus: shape must be [num_candidates], 1 candidate or more, not [0]"),
        ({"gpus": 4}, "gpus: shape must be [num_candidates], 1 candidate or more, not []"),
        ({"gpus": [1, -2, 4]}, "gpus[1]=-2: must be from 1 to 2^20"),
        ({"gpus": [1.0, 2.0, 4.0]}, "gpus: must be integers, not float64"),
        ({"microbatch_s": [1.0, math.nan, 1.0]}, "microbatch_s[1]=nan: must be 0 or more"),
        ({"fill_s": [1.0, 1.0]}, "fill_s: shape must be [3], not [2]"),
        ({"update_s": -1.0}, "update_s[0]=-1.0: must be 0 or more, and finite"),
        ({"memory_bytes": [-1, 0, 0]}, "memory_bytes[0]=-1: must be from 0 to 2^60"),
        ({"gpu_type": ""}, "gpu_type='': give the name of a type of GPU"),
    ],
)
def test_a_bad_value_of_a_candidate_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        candidates(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"candidates": {}}, "candidates: give one module or more"),
        ({"candidates": {"vision": []}}, "module 'vision': no candidates"),
        (
            {"candidates": {"vision": [candidates(), candidates()]}},
            "module 'vision': 2 sets of candidates on 'gpu'; join them into one",
        ),
        ({"gpus": 0}, "gpus=0: must be from 1 to 2^20"),
        ({"gpus": 8.0}, "gpus=8.0: must be an integer"),
        (
            {"gpus": {"H100": 8}},
            "gpus: no entry for GPU type 'gpu', which has candidates; entries: 'H100'",
        ),
        ({"gpus": {"gpu": -1}}, "gpus['gpu']=-1: must be from 0 to 2^20"),
        ({"microbatches": 0}, "microbatches=0: must be from 1 to 2^31"),
        ({"memory_bytes": math.inf}, "memory_bytes=inf: must be an integer"),
        ({"memory_bytes": {}}, "memory_bytes: no entry for GPU type 'gpu'"),
        ({"policy": "best"}, "policy 'best': choose from exact, flowtrain, dflop"),
    ],
)
def test_a_bad_argument_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        solve(**{"candidates": {"vision": candidates()}, **LIMITS, **changes})


def test_bad_arguments_of_curve_and_ranking_are_named() -> None:
    offers = {"vision": candidates()}
    limits = {"microbatches": 1, "memory_bytes": 30}
    with pytest.raises(ValueError, match=re.escape("gpus=[]: give one number of GPUs or more")):
        curve(offers, **limits, gpus=[])
    with pytest.raises(ValueError, match="count=0: must be 1 or more"):
        ranked(offers, **limits, gpus=1, count=0)
    with pytest.raises(ValueError, match="gpu_type='H100': choose from gpu"):
        next_useful(offers, **limits, gpus={"gpu": 1}, gpu_type="H100")
