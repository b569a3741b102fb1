"""OmniBal's iterative sampling and filtering."""

from __future__ import annotations

import math

import numpy
from numpy.random import Generator

from flowtrain_core.packing.policies._grid import in_bin_order, sums
from flowtrain_core.packing.policies._partition import next_fit
from flowtrain_core.packing.problem import IntArray, Layout, PlaceArray, Problem

_SLACK_TOKENS = 128  # A group this near to the cap is kept.
_VISION_STEPS = (0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2)


def omnibal(
    problem: Problem,
    *,
    seed: int = 0,
    rounds: int = 50,
    slack_tokens: int = _SLACK_TOKENS,
    vision_cap: int | None = None,
) -> Layout:
    """Group at random up to both caps, keep the groups that are full, and group the rest again.

    Unlike the released code, nothing is dropped: what is left after the last round stays as it is,
    and a sample over the vision cap forms a group.

    Args:
        problem: Its encoder costs are used as the number of images.
        seed: Of the shuffles; each round has its own.
        rounds: Times that what is not kept is grouped anew.
        slack_tokens: Tokens below the cap at which a group counts as full.
        vision_cap: Most encoder cost of a group; None chooses what gives the smallest sum of
            pad and dist ratios, around the samples' own ratio of encoder cost to tokens.

    Source: arXiv 2407.20761; `iter_random_groups` of ModelTC/OmniBal.
    """
    vision = problem.encoder_cost
    if vision is None or not vision.any():
        vision = numpy.zeros(len(problem), numpy.int64)
        vision_cap = 0
    if vision_cap is None:
        vision_cap = _fitted_cap(problem, vision, seed)
    bins = _groups(problem, vision, vision_cap, seed, rounds, slack_tokens)
    return in_bin_order(problem, bins)


def _groups(
    problem: Problem, vision: IntArray, cap: int, seed: int, rounds: int, slack: int
) -> PlaceArray:
    """Group of each sample."""
    group = numpy.full(len(problem), -1, numpy.int32)
    rest = numpy.arange(len(problem))
    used = 0
    for number in range(rounds):
        if not len(rest):
            break
        order = _shuffled(numpy.random.default_rng((seed, number)), rest)
        bins = next_fit(problem.tokens[order], problem.max_tokens, vision[order], cap)
        drawn = bins[numpy.argsort(order, kind="stable")]
        count = int(drawn.max()) + 1
        tokens = sums(problem.tokens[rest], drawn, count)
        images = sums(vision[rest], drawn, count)
        full = (tokens >= problem.max_tokens - slack) | ((images >= cap) & (cap > 0))
        if number == rounds - 1:
            full[:] = True
        place = numpy.cumsum(full) - 1 + used
        kept = full[drawn]
        group[rest[kept]] = place[drawn[kept]]
        used += int(full.sum())
        rest = rest[~kept]
    return group


def _shuffled(random: Generator, which: IntArray) -> IntArray:
    return random.permutation(which)


def _fitted_cap(problem: Problem, vision: IntArray, seed: int) -> int:
    """Vision cap for which a few rounds leave the smallest dist ratios."""
    matched = problem.max_tokens * float(vision.sum()) / max(1.0, float(problem.tokens.sum()))
    best, chosen = numpy.inf, int(vision.sum()) + 1
    for step in _VISION_STEPS:
        # Above the sum a cap does nothing.
        cap = min(max(1, round(matched * step)), int(vision.sum()) + 1)
        bins = _groups(problem, vision, cap, seed, 10, _SLACK_TOKENS)
        count = int(bins.max(initial=0)) + 1
        spread = _spread(sums(problem.tokens, bins, count), problem.ranks)
        spread += _spread(sums(vision, bins, count), problem.ranks)
        if spread < best:
            best, chosen = spread, cap
    return chosen


def _spread(loads: IntArray, ranks: int) -> float:
    """Dist ratio of full slots of bins in turn."""
    whole = len(loads) // ranks * ranks
    if whole == 0:
        return 0.0
    slots = loads[:whole].reshape(-1, ranks)
    ratios = slots.sum(axis=1) / ranks / numpy.maximum(1, slots.max(axis=1))
    return 1.0 - math.fsum(ratios.tolist()) / len(slots)
