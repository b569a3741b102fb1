"""Inputs are dealt as the runtime deals them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy
import pytest

from flowtrain.plan.search.dealt import (
    Inputs,
    deal_apart,
    deal_in_each,
    deal_together,
    most_in_chunks,
)
from flowtrain.steps.items import SizedImage, Slots, colocated_items, decoupled_items
from flowtrain.steps.step import PlannedImage

READERS, SLOTS = 3, 4


def drawn(seed: int) -> tuple[Inputs, Slots]:
    """Samples with none to nine images, for the planner and for the runtime."""
    random = numpy.random.default_rng(seed)
    samples = 40
    inputs = Inputs(
        reader=random.integers(0, READERS, samples),
        slot=random.integers(0, SLOTS, samples),
        count=random.integers(0, 10, samples) * (random.random(samples) < 0.7),
        tokens=random.integers(1, 900, samples).astype(float),
        cost=random.random(samples) + 0.1,
    )
    slots: list[list[list[SizedImage]]] = [[[] for _ in range(SLOTS)] for _ in range(READERS)]
    for sample in range(samples):
        for image in range(inputs.count[sample]):
            place = slots[inputs.reader[sample]][inputs.slot[sample]]
            planned = PlannedImage(sample, image, (1, 1, 1))
            place.append(SizedImage(planned, int(inputs.tokens[sample]), inputs.cost[sample]))
    return inputs, slots


def cost_of(inputs: Inputs, images: tuple[PlannedImage, ...]) -> float:
    return sum(float(inputs.cost[image.sample]) for image in images)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("ranks", "item_tokens"), [(1, 4096), (5, 800), (7, 100_000)])
def test_ranks_of_their_own_get_the_items_that_the_runtime_gives_them(
    seed: int, ranks: int, item_tokens: int
) -> None:
    inputs, slots = drawn(seed)
    loads = numpy.zeros((SLOTS, ranks))
    for item in decoupled_items(slots, encoder_ranks=ranks, item_tokens=item_tokens):
        loads[item.slot, item.encoder] += cost_of(inputs, item.images)
    found = deal_apart(inputs, ranks=ranks, slots=SLOTS, item_tokens=item_tokens)
    assert found == pytest.approx(loads)


def test_inputs_that_are_dealt_one_by_one_are_balanced() -> None:
    inputs, _ = drawn(0)
    (loads,) = deal_apart(replace(inputs, slot=0 * inputs.slot), ranks=5, slots=1, item_tokens=1)
    assert loads.sum() == pytest.approx(inputs.count @ inputs.cost)
    assert loads.max() - loads.min() <= inputs.cost.max()


@pytest.mark.parametrize("seed", range(6))
def test_ranks_that_meet_in_each_microbatch_have_equal_shares_of_it(seed: int) -> None:
    inputs, _ = drawn(seed)
    options = {"ranks": 5, "slots": SLOTS, "item_tokens": 900}
    loads, apart = deal_in_each(inputs, **options), deal_apart(inputs, **options)
    assert loads.sum(axis=1) == pytest.approx(apart.sum(axis=1))
    assert loads.max(axis=1).sum() < apart.max(axis=1).sum()


@pytest.mark.parametrize("seed", range(6))
def test_ranks_with_both_modules_encode_what_the_runtime_gives_them(seed: int) -> None:
    inputs, slots = drawn(seed)
    own = numpy.bincount(inputs.reader, inputs.count * inputs.cost, READERS)
    # One rank has much more than the mean, so that images move.
    load = own + numpy.array([5.0, 30.0, 10.0])
    encoded = numpy.zeros((SLOTS, READERS))
    items = colocated_items(slots, load=load.tolist(), item_tokens=4096)
    for item in items:
        encoded[item.slot, item.encoder] += cost_of(inputs, item.images)
    assert any(item.encoder != item.reader for item in items)
    assert deal_together(inputs, load, slots=SLOTS) == pytest.approx(encoded)


def best_dealt(costs: list[float], ranks: int) -> float:
    """The lowest highest load over all ways to deal inputs to ranks."""
    ways = itertools.product(range(ranks), repeat=len(costs))
    return min(max(numpy.bincount(way, costs, ranks).tolist()) for way in ways)


@pytest.mark.parametrize("seed", range(6))
def test_a_few_inputs_are_dealt_nearly_as_well_as_they_can_be(seed: int) -> None:
    random, ranks = numpy.random.default_rng(seed), 3
    inputs = Inputs(
        reader=numpy.zeros(4, int),
        slot=numpy.array([0, 0, 1, 1]),
        count=numpy.array([2, 3, 1, 4]),
        tokens=numpy.ones(4),
        cost=random.random(4) + 0.1,
    )
    costs = numpy.repeat(inputs.cost, inputs.count)
    best = best_dealt(costs[:5].tolist(), ranks) + best_dealt(costs[5:].tolist(), ranks)
    # Graham (1969): at most 4/3 - 1/(3 ranks) of the best.
    assert best <= most_in_chunks(inputs, ranks, 1) + 1e-9 <= (4 / 3 - 1 / 9) * best + 2e-9
    # Four equal ones on three ranks take as long as two, and not as their mean.
    four = replace(inputs, count=numpy.array([4, 0, 0, 0]), cost=numpy.ones(4))
    assert most_in_chunks(four, ranks, 1) == 2


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("images", [1, 8, 64])
@pytest.mark.parametrize("chunk_slots", [1, 2, 4])
def test_small_inputs_fill_up_ranks_as_if_they_were_dealt(
    seed: int, images: int, chunk_slots: int
) -> None:
    inputs, _ = drawn(seed)
    inputs = replace(inputs, count=images * inputs.count)
    chunk = inputs.slot // chunk_slots
    dealt = deal_in_each(replace(inputs, slot=chunk), ranks=5, slots=SLOTS, item_tokens=1)
    exact = dealt.max(axis=1).sum()
    assert 0.98 * exact <= most_in_chunks(inputs, 5, chunk_slots) <= exact * (1 + 1e-9)


def test_samples_of_many_images_are_dealt_without_a_list_of_them() -> None:
    ones, slots = numpy.ones(8), numpy.arange(8)
    inputs = Inputs(0 * slots, slots, numpy.full(8, 10**12), tokens=ones, cost=ones)
    assert most_in_chunks(inputs, 4, 8) == 2 * 10**12
