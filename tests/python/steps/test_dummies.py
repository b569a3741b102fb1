"""A sharded encoder runs as many passes on each of its ranks."""

from __future__ import annotations

from collections import Counter

import pytest
from small_plans import SHARED

from flowtrain.config.parallel import Meets
from flowtrain.steps import EncoderItem
from flowtrain.steps.dummies import dummies

ITEMS = [
    EncoderItem(index=i, encoder=encoder, reader=reader, slot=slot, row=0, num_rows=4, images=())
    # Two items more of the first rank in the first slot.
    for i, (encoder, reader, slot) in enumerate((*SHARED, (0, 0, 0), (0, 0, 0)))
]


@pytest.mark.parametrize(
    ("meets", "chunk_slots", "added"),
    [
        # Of three ranks the first has three items in slot 0 and one in slot 1, the second one each.
        ("always", None, {(1, 0): 2, (2, 0): 4}),
        ("always", 1, {(1, 0): 2, (2, 0): 3, (2, 1): 1}),
        ("once", None, {(2, 0): 1}),
        ("once", 1, {(2, 0): 1, (2, 1): 1}),
        ("never", 1, {}),
    ],
)
def test_dummies_make_the_passes_of_each_chunk_equal(
    meets: Meets, chunk_slots: int | None, added: dict[tuple[int, int], int]
) -> None:
    made = dummies(ITEMS, encoder_ranks=3, meets=meets, slots=2, chunk_slots=chunk_slots)
    assert Counter((item.encoder, item.slot) for item in made) == added
    assert [item.index for item in made] == list(range(6, 6 + len(made)))
    assert all(item.is_dummy for item in made)


@pytest.mark.parametrize("meets", ["once", "always"])
def test_every_rank_encodes_in_the_last_chunk_where_the_sums_end(meets: Meets) -> None:
    first = [item for item in ITEMS if item.slot == 0]
    made = dummies(first, encoder_ranks=2, meets=meets, slots=3, chunk_slots=1)
    assert sorted(item.encoder for item in made if item.slot == 2) == [0, 1]
    assert not any(item.slot == 1 for item in made)


def test_a_step_without_images_has_no_dummy() -> None:
    assert dummies([], encoder_ranks=2, meets="always", slots=2, chunk_slots=None) == ()
