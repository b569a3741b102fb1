"""Towers with heads of zeros, so that tensor parallelism divides them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flowtrain.cost import Counts, Layer
from flowtrain.cost.timing import DataSheetTiming
from flowtrain.plan.padding import padded
from tests.planned import small_model


def test_each_rank_of_a_padded_tower_has_whole_heads() -> None:
    model = small_model()
    (encoder,) = model.encoders

    def tower(heads: int, tp: int) -> Layer:
        """Its linear product alone, of 64 columns a head."""
        layer = model.layers[1]
        product = replace(layer.products[0], flops=1e6 * heads, side=64 * heads)
        layers = list(model.layers)
        layers[1] = replace(layer, products=(product,), saved=())
        given = replace(model, layers=tuple(layers), encoders=(replace(encoder, heads=heads),))
        return padded(given, tp).layers[1]

    timing = DataSheetTiming(flops_per_s=1e12, memory_bytes_per_s=1e15)

    def forward_s(heads: int, tp: int) -> float:
        return timing.seconds(tower(heads, tp), Counts(vision_tokens=4096), tp=tp).forward

    # Three heads are padded to four: each of four ranks has one of 64 columns, as without padding.
    assert forward_s(3, 4) == pytest.approx(forward_s(4, 4))
    assert forward_s(3, 3) == pytest.approx(forward_s(4, 4))
