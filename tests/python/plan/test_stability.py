"""The test of stability doubles as often as it must, and says what it rests on."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import pytest
from numpy.random import Generator

from flowtrain.plan import Candidates, solve
from flowtrain.plan.stability import (
    Round,
    of_preset,
    of_samples,
    proportional,
    stability,
)

RULE = partial(proportional, gpus=8)


def mixed(share: Callable[[int], float]) -> Callable[[int, Generator], numpy.ndarray]:
    """Batches whose work is 1 to 3, but 1 to 1 in some share of them, by their size."""

    def draw(count: int, random: Generator) -> numpy.ndarray:
        other = random.random() < share(count)
        return numpy.tile([1.0, 1.0 if other else 3.0], (count, 1))

    return draw


def test_a_round_needs_59_batches_that_give_the_split_of_the_first() -> None:
    found = stability(mixed(lambda count: 0), RULE, seed=0)
    assert found.rounds == (Round(samples=16, batches=59, same=True),)
    assert (found.samples, found.gpus) == (16, (2, 6))
    # With one batch in five that differs, a round passes in two of a million cases.
    rare = mixed(lambda count: 0.2)
    passed = [stability(rare, RULE, seed=seed, maximum=16).samples for seed in range(20)]
    assert passed == [None] * 20


def test_samples_are_doubled_until_all_batches_agree() -> None:
    found = stability(mixed(lambda count: 0.5 if count < 64 else 0), RULE, seed=3)
    assert [each.samples for each in found.rounds] == [16, 32, 64]
    assert [each.same for each in found.rounds] == [False, False, True]
    assert (found.samples, found.gpus) == (64, (2, 6))


def test_what_is_never_stable_ends_at_the_maximum() -> None:
    found = stability(mixed(lambda count: 0.5), RULE, seed=0, start=10, maximum=100)
    assert [each.samples for each in found.rounds] == [10, 20, 40, 80]
    assert found.samples is None
    assert found.explain(["a", "b"]).startswith("not stable up to 80 samples: batch ")


def test_other_batches_of_a_stable_size_give_the_same_split() -> None:
    rule, draw = partial(proportional, gpus=64), of_preset("charts")
    found = stability(draw, rule, seed=5)
    assert found.samples is not None
    random = numpy.random.default_rng(0)
    again = [tuple(rule(draw(found.samples, random).mean(axis=0))) for _ in range(100)]
    assert again.count(found.gpus) >= 95
    assert stability(draw, rule, seed=5) == found


def test_variation_and_margin_are_those_of_the_ratio() -> None:
    given = numpy.random.default_rng(1).lognormal(size=(20000, 2)) * [1.0, 3.0]
    found = stability(of_samples(given), RULE, seed=0, start=4096)
    # Of 8 GPUs, a share of 2.5 / 8 is where a third one goes to the first module.
    ratio = given[:, 0].mean() / given[:, 1].mean()
    assert found.margin == pytest.approx(math.log(2.5 / 5.5 / ratio), abs=0.05)
    sums = given[: 200 * 100].reshape(200, 100, 2).sum(axis=1)
    ratios = sums[:, 0] / sums[:, 1]
    assert found.variation == pytest.approx(10 * ratios.std() / ratios.mean(), rel=0.15)
    assert found.sufficient == (6 * found.variation / found.margin) ** 2
    assert "a change by" in found.explain(["a", "b"])


def test_a_rule_may_be_a_solver() -> None:
    def allocate(work: numpy.ndarray) -> list[int]:
        gpus = numpy.array([1, 2, 4, 8, 16])
        offers = {
            name: Candidates(gpus=gpus, microbatch_s=own / gpus, fill_s=own / gpus, memory_bytes=1)
            for name, own in zip(("vision", "backbone"), work.tolist(), strict=True)
        }
        found = solve(offers, gpus=20, microbatches=8, memory_bytes=1)
        return [choice.gpus for choice in found.choices.values()]

    found = stability(of_samples([[1.0, 4.0]]), allocate, seed=0)
    assert (found.samples, found.gpus, found.variation) == (16, (4, 16), 0.0)


@pytest.mark.parametrize(
    ("work", "gpus", "expected"),
    [
        ([1.0, 3.0], 8, (2, 6)),
        ([1.0, 1.0, 1.0], 8, (3, 3, 2)),
        # 0.16 of a GPU becomes a whole one, and the others share 7.
        ([1.0, 20.0, 29.0], 8, (1, 3, 4)),
        ([0.0, 5.0], 4, (1, 3)),
        ([0.1, 0.1, 30.0], 3, (1, 1, 1)),
        # Less than one GPU after another module had its own: 2 x 1.2 / 3.2 is less than 1.
        ([0.1, 1.2, 2.0], 3, (1, 1, 1)),
    ],
)
def test_every_module_has_a_gpu_and_the_rest_is_in_proportion(
    work: list[float], gpus: int, expected: tuple[int, ...]
) -> None:
    assert proportional(numpy.array(work), gpus=gpus) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alpha": 0.0}, "alpha=0.0: must be greater than 0 and less than 1"),
        ({"error": 1.0}, "error=1.0: must be at least 1e-05 and less than 1"),
        ({"error": 1e-12}, "error=1e-12: must be at least 1e-05"),
        ({"start": 0}, "start=0: must be from 1 to maximum=65536"),
        ({"draw": lambda count, random: numpy.ones(count)}, r"draw\(16\): shape must be \[16, num"),
        (
            {"draw": lambda count, random: [[1.0, -2.0]] * count},
            r"draw\(16\)\[0, 1\]=-2.0: must be",
        ),
        ({"allocate": partial(proportional, gpus=1)}, r"gpus=1, work=\[1.0, 3.0\]: must be at"),
    ],
)
def test_a_bad_argument_is_named(changes: dict[str, Any], message: str) -> None:
    arguments = {"draw": mixed(lambda count: 0), "allocate": RULE, "seed": 0, **changes}
    with pytest.raises(ValueError, match=message):
        stability(**arguments)


def test_samples_without_work_are_refused() -> None:
    with pytest.raises(ValueError, match=r"work: shape must be \[num_samples, num_modules\], 1 of"):
        of_samples(numpy.zeros((0, 2)))
    with pytest.raises(ValueError, match="work=\\[0.0, 0.0\\]: must be at least 1 GPU per module"):
        stability(of_samples([[0.0, 0.0]]), RULE, seed=0)
