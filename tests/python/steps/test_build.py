from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pytest

from flowtrain.cost.flops import Grid
from flowtrain.packing import PackingError
from flowtrain.steps import (
    Layout,
    Passes,
    PlannedImage,
    Space,
    SpaceError,
    SpaceNeed,
    StepPlan,
    build_step,
)

STRICT = Passes(encoder=3.0, backbone=3.0)


@dataclass(frozen=True)
class Size:
    index: int
    num_tokens: int
    num_targets: int
    image_lengths: tuple[int, ...]

    @property
    def grids(self) -> tuple[Grid, ...]:
        return tuple((1, 2, 2 * length) for length in self.image_lengths)

    @property
    def seconds(self) -> tuple[float, ...]:
        return tuple(0.3 * number for number in range(len(self.image_lengths)))


def sizes(seed: int, number: int) -> list[Size]:
    draw = random.Random(seed)
    out = []
    for index in range(number):
        images = tuple(draw.randint(1, 30) for _ in range(draw.choice([0, 1, 1, 3])))
        tokens = sum(images) + draw.randint(5, 20)
        out.append(Size(index, tokens, draw.randint(1, 5), images))
    return out


def plan(
    seed: int,
    *,
    encoder_ranks: int = 2,
    backbone_ranks: int = 2,
    colocated: bool = False,
    number: int = 20,
) -> StepPlan:
    samples = sizes(seed, number)
    layout = Layout(
        encoder_ranks=encoder_ranks,
        backbone_ranks=backbone_ranks,
        colocated=colocated,
        passes=STRICT,
        microbatch_tokens=150,
        item_tokens=40,
    )
    cost = [float(s.num_tokens**2) for s in samples]
    return build_step(seed, samples, cost, layout, image_cost=image_cost, cursor=number)


def image_cost(grid: Grid) -> float:
    """Linear in the tokens, so that loads are numbers of tokens."""
    return float(math.prod(grid))


@pytest.mark.parametrize("colocated", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_every_image_is_encoded_once_into_its_own_rows(seed: int, colocated: bool) -> None:
    made = plan(seed, colocated=colocated)
    lengths = {
        PlannedImage(s.index, image, (1, 2, 2 * length)): length
        for s in sizes(seed, 20)
        for image, length in enumerate(s.image_lengths)
    }
    assert sorted(image for item in made.items for image in item.images) == sorted(lengths)
    for rank in range(2):
        assert len(made.documents[rank]) == made.slots
        for slot, documents in enumerate(made.documents[rank]):
            assert sum(d.num_tokens for d in documents) <= 150
            row = 0
            shown = [image for item in made.items_for(rank, slot) for image in item.images]
            for item in made.items_for(rank, slot):
                assert item.row == row
                assert item.num_rows == sum(lengths[image] for image in item.images)
                row += item.num_rows
            # The backbone takes the rows in the order of its documents.
            expected = [
                PlannedImage(d.sample, image, grid)
                for d in documents
                for image, grid in enumerate(d.grids)
            ]
            assert shown == expected
            assert row == sum(d.image_tokens for d in documents)


def test_the_samples_of_a_step_do_not_depend_on_the_layout() -> None:
    one, many = (
        plan(3, encoder_ranks=1, backbone_ranks=1),
        plan(3, encoder_ranks=3, backbone_ranks=4),
    )
    assert (one.samples, one.num_targets) == (many.samples, many.num_targets)


def test_documents_of_a_slot_are_in_order_of_length() -> None:
    slots = [slot for rank in plan(4).documents for slot in rank]
    assert max(map(len, slots)) > 2
    for slot in slots:
        lengths = [document.num_tokens for document in slot]
        assert lengths == sorted(lengths)


def test_balance_equals_that_computed_by_hand() -> None:
    sizes = [(70, 6), (30, 6), (20, 2), (10, 2)]
    samples = [Size(index, length, 1, (image,)) for index, (length, image) in enumerate(sizes)]
    layout = Layout(
        encoder_ranks=2, backbone_ranks=2, passes=STRICT, microbatch_tokens=100, item_tokens=4
    )
    cost = [70.0, 30.0, 20.0, 10.0]
    made = build_step(0, samples, cost, layout, image_cost=image_cost, cursor=4).packing
    assert made is not None
    # In arrival order the ranks have 70 + 30 and 20 + 10; packed, 70 is alone.
    assert made.arrival.dist_ratio == pytest.approx(1 - 65 / 100)
    assert made.arrival.encoder_dist_ratio == pytest.approx(1 - 8 / 12)
    assert made.arrival.pad_ratio == pytest.approx(1 - 130 / (2 * 70 + 2 * 20))
    assert made.packed.dist_ratio == pytest.approx(1 - 65 / 70)
    assert made.packed.encoder_dist_ratio == pytest.approx(1 - 8 / 10)
    assert made.packed.pad_ratio == pytest.approx(1 - 130 / (2 * 70))
    assert made.bound == pytest.approx(70)
    assert made.gap == pytest.approx(0, abs=1e-6)


def test_ranks_that_meet_in_every_slot_are_balanced_in_every_slot() -> None:
    samples = [Size(i, tokens, 1, ()) for i, tokens in enumerate((90, 60, 50, 40, 80, 30, 20, 10))]
    waits = {}
    for meets in ("once", "always"):
        layout = Layout(
            encoder_ranks=1,
            backbone_ranks=2,
            backbone_meets=meets,  # type: ignore[arg-type]
            passes=STRICT,
            microbatch_tokens=100,
            item_tokens=40,
        )
        cost = [float(s.num_tokens**2) for s in samples]
        made = build_step(0, samples, cost, layout, image_cost=image_cost, cursor=8)
        loads = [
            [sum(doc.num_tokens**2 for doc in slot) for slot in rank] for rank in made.documents
        ]
        waits[meets] = sum(map(max, zip(*loads, strict=True))), max(map(sum, loads))
    assert waits["always"][0] < waits["once"][0]
    assert waits["once"][1] < waits["always"][1]


def test_a_plan_is_equal_after_a_round_trip_through_json() -> None:
    made = plan(5)
    assert StepPlan.from_json(made.to_json()) == made


def test_a_sample_above_the_cap_is_refused() -> None:
    layout = Layout(
        encoder_ranks=1, backbone_ranks=1, passes=STRICT, microbatch_tokens=10, item_tokens=40
    )
    with pytest.raises(PackingError, match="11 tokens exceed max_tokens=10"):
        build_step(0, [Size(0, 11, 1, ())], [1.0], layout, image_cost=image_cost, cursor=1)


def test_a_frozen_encoder_needs_one_item_and_a_trained_one_a_whole_step() -> None:
    made = plan(1)
    trained = Space(slab_bytes=4096, row_bytes=512, trained=True)
    frozen = Space(slab_bytes=4096, row_bytes=512, trained=False)
    per_rank = [sum(trained.parts(i.num_rows) for i in made.items_of(e)) for e in range(2)]
    assert trained.need(made).activation == max(per_rank)
    largest = max(frozen.parts(item.num_rows) for item in made.items)
    assert frozen.need(made) == SpaceNeed(activation=largest, gradient=0)


def colocated_plan(samples: Sequence[Size], passes: Passes, ranks: int = 2) -> StepPlan:
    """The cost of the backbone is the number of tokens, and that of an image twice its tokens."""
    layout = Layout(
        encoder_ranks=ranks,
        backbone_ranks=ranks,
        colocated=True,
        passes=passes,
        microbatch_tokens=500,
        item_tokens=40,
    )
    cost = [float(s.num_tokens) for s in samples]
    return build_step(0, samples, cost, layout, image_cost=half_cost, cursor=len(samples))


def half_cost(grid: Grid) -> float:
    return image_cost(grid) / 2


def loads(made: StepPlan, passes: Passes) -> list[float]:
    """Work of each rank."""
    load = [0.0] * len(made.documents)
    for rank in range(len(load)):
        tokens = sum(d.num_tokens for slot in made.documents[rank] for d in slot)
        load[rank] += passes.backbone * tokens
    for item in made.items:
        load[item.encoder] += passes.encoder * 2 * item.num_rows
    return load


# Of a text, an encoder pass costs nothing; of an image it costs twice a backbone pass.
TEXT_AND_IMAGES = [
    *(Size(index, 60, 5, (50,)) for index in range(4)),
    *(Size(index, 60, 5, ()) for index in range(4, 16)),
]


@pytest.mark.parametrize("encoder", [1.0, 3.0])
def test_documents_balance_both_modules_of_colocated_ranks(encoder: float) -> None:
    passes = Passes(encoder=encoder, backbone=3.0)
    made = colocated_plan(TEXT_AND_IMAGES, passes, ranks=3)
    load = loads(made, passes)
    # Four images cannot be balanced without the texts beside them.
    assert max(load) < 1.05 * sum(load) / 3
    assert all(item.encoder == item.reader for item in made.items)


@pytest.mark.parametrize("images", [(20,) * 10, (1,) * 100 + (50, 50)])
def test_images_of_a_rank_above_the_mean_move_until_loads_are_nearly_equal(
    images: tuple[int, ...],
) -> None:
    samples = [Size(0, 210, 5, images), *(Size(index, 20, 5, ()) for index in range(1, 4))]
    made = colocated_plan(samples, STRICT)
    load = loads(made, STRICT)
    assert max(load) <= sum(load) / 2 + 3 * 2 * 20  # An image of 20 tokens.
    [reader] = {item.reader for item in made.items}
    assert {item.encoder for item in made.items} == {0, 1}
    # Small images move first, and only away from the rank that reads them.
    moved = [image.image for item in made.items if item.encoder != reader for image in item.images]
    assert moved == list(range(len(moved)))


def test_an_image_does_not_move_for_less_than_it_costs() -> None:
    samples = [Size(0, 202, 5, (4,) * 10), Size(1, 200, 5, (4,) * 9)]
    made = colocated_plan(samples, STRICT)
    load = loads(made, STRICT)
    assert max(load) > min(load)
    assert all(item.encoder == item.reader for item in made.items)


def test_colocated_segments_hold_the_records_that_move() -> None:
    samples = [Size(0, 210, 5, (20,) * 10), Size(1, 30, 5, (20,))]
    made = colocated_plan(samples, STRICT)
    moving = [item for item in made.items if item.encoder != item.reader]
    assert moving
    space = Space(slab_bytes=4096, row_bytes=512, trained=True, colocated=True)
    sent, read = [0, 0], [0, 0]
    for item in moving:
        sent[item.encoder] += space.parts(item.num_rows)
        read[item.reader] += space.parts(item.num_rows)
    assert space.need(made) == SpaceNeed(activation=max(sent), gradient=max(read))
    frozen = Space(slab_bytes=4096, row_bytes=512, trained=False, colocated=True)
    assert frozen.need(made) == SpaceNeed(activation=max(sent), gradient=0)


def test_the_error_of_a_pool_below_the_need_has_the_missing_bytes() -> None:
    space = Space(slab_bytes=4096, row_bytes=512, trained=True)
    need = SpaceNeed(activation=3, gradient=2)
    fit = partial(space.fit, encoder_ranks=2, backbone_ranks=2, scale=1.0, who="step 3")
    with pytest.raises(SpaceError, match="step 3 needs at least .* 4096 bytes are missing"):
        fit(need, pool_bytes=9 * 4096, max_slabs=99)
    with pytest.raises(SpaceError, match="pool.max_cells=8: .* 8192 bytes are missing"):
        fit(need, pool_bytes=None, max_slabs=8)
    double = SpaceNeed(activation=6, gradient=4)
    assert fit(need, pool_bytes=20 * 4096, max_slabs=99) == double
    assert fit(need, pool_bytes=None, max_slabs=20, scale=8.0) == double
