"""Ours on lengths and costs that no preset has: what is hard, and what is odd. There is no bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy
from numpy.random import Generator
from numpy.typing import NDArray
from peers.limited import timed

from flowtrain_core.packing import schedule
from packing.cases import OURS, SCALES, Case
from packing.rows import Row

PART = "elsewhere"
_EVEN = 70_000  # Tokens of a sample whose attention costs as much as all else, in a 7B model.

Numbers = NDArray[Any]
Draw = Callable[[Generator, int], tuple[Numbers, Numbers]]


def _cost(tokens: Numbers, even: int = _EVEN) -> Numbers:
    return tokens * even + tokens * tokens


def _heavy(random: Generator, count: int, median: float, sigma: float) -> Numbers:
    drawn = median * random.lognormal(0, sigma, count)
    return numpy.clip(drawn, 16, 65536).astype(numpy.int64)


def _bimodal(random: Generator, count: int, low: int, high: int) -> Numbers:
    is_long = random.random(count) < 0.1
    return numpy.where(
        is_long, random.integers(low, high, count), random.integers(100, low // 4, count)
    )


def _one_length(draw: Callable[[Generator, int], Numbers], even: int = _EVEN) -> Draw:
    def both(random: Generator, count: int) -> tuple[Numbers, Numbers]:
        tokens = draw(random, count)
        return tokens, _cost(tokens, even)

    return both


def _near_equal_but_one(random: Generator, count: int) -> Numbers:
    return numpy.append(random.integers(900, 1100, count - 1), 20_000)


def _any_density(sigma: float) -> Draw:
    """Cost is not a matter of length alone."""

    def both(random: Generator, count: int) -> tuple[Numbers, Numbers]:
        tokens = _heavy(random, count, 1000, sigma)
        return tokens, (tokens * random.lognormal(0, sigma, count)).astype(numpy.int64) + 1

    return both


LOADS: dict[str, Draw] = {
    "uniform": _one_length(lambda random, count: random.integers(64, 8192, count)),
    "lognormal, sigma 1": _one_length(lambda random, count: _heavy(random, count, 1500, 1.0)),
    "lognormal, sigma 1.5": _one_length(lambda random, count: _heavy(random, count, 800, 1.5)),
    "exponential, mostly attention": _one_length(
        lambda random, count: random.exponential(2000, count).astype(numpy.int64) + 16, 8000
    ),
    "lognormal, almost quadratic": _one_length(
        lambda random, count: _heavy(random, count, 800, 1.5), 500
    ),
    "bimodal": _one_length(lambda random, count: _bimodal(random, count, 8000, 32000)),
    "bimodal, almost quadratic": _one_length(
        lambda random, count: _bimodal(random, count, 4000, 16000), 500
    ),
    "near equal but one": _one_length(_near_equal_but_one),
    "any density": _any_density(0.5),
    "any density, heavy tails": _any_density(1.2),
}


def measure(case: Case) -> Iterator[Row]:
    count, ranks, microbatches = SCALES[case.scale]
    tokens, cost = LOADS[case.load](numpy.random.default_rng(case.seed), count)
    mean = int(tokens.sum()) // (ranks * microbatches)
    shape: dict[str, Any] = {
        "ranks": ranks,
        "microbatches": microbatches,
        "max_tokens": max(int(tokens.max()), mean * 5 // 4),
    }
    plan, ms = timed(lambda: schedule(tokens, cost, **shape))
    yield {"name": OURS, "gap": 100 * plan.gap, "ms": ms}
