"""Descriptions of released sizes, against the family they are made from."""

from __future__ import annotations

from pathlib import Path

import pytest
from cost.released import RELEASED, qwen3_vl_moe
from transformers import InternVLConfig, Qwen3MoeConfig

from flowtrain.cost import layer_flops
from flowtrain.cost.layers import PARTS, Counts
from flowtrain.models.describe import describe
from flowtrain.models.family import Family
from flowtrain.models.registry import family_for
from flowtrain.plan.describe import Share


@pytest.fixture(params=RELEASED)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    RELEASED[request.param]().save_pretrained(tmp_path)
    return tmp_path


def two_images(family: Family) -> tuple[list[tuple[int, int, int]], float, float]:
    """Grids, their visual tokens, and the sum of these squared."""
    native = [(1, 64, 64), (1, 32, 64)]
    tiles = [(3, 1, 1), (1, 1, 1)]
    grids = native if "qwen" in family.config.model_type else tiles
    each = [family.counts(0, [grid], num_targets=0).projected for grid in grids]
    return grids, sum(each), sum(tokens**2 for tokens in each)


def test_a_description_has_the_layers_parameters_and_work_of_its_family(folder: Path) -> None:
    family, model = family_for(folder), describe(folder)
    sizes, trainable = family.parameter_sizes(), family.trainable_sizes()
    assert sum(model.parameters) == sum(sizes.values())
    assert model.trained_parameters(PARTS) == sum(trainable.values())
    for part in PARTS:
        of_part = [size for name, size in sizes.items() if family.part_of(name) == part]
        assert sum(of_part) == sum(
            size
            for layer, size in zip(model.layers, model.parameters, strict=True)
            if layer.part == part
        )
    grids, visual, squares = two_images(family)
    share = Share(tokens=3000, squares=3000**2, targets=700, encoded={})
    (encoder,) = model.encoders
    text, images = model.text_counts(share), encoder.shape.counts(visual, squares)
    found = Counts(*map(sum, zip(text, images, strict=True)))
    assert found == pytest.approx(family.counts(3000, grids, num_targets=700))
    flops = layer_flops(model.layers, found, PARTS)
    expected = layer_flops(family.layers, family.counts(3000, grids, num_targets=700), PARTS)
    assert [each.name for each in flops] == [each.name for each in expected]
    assert [each.forward for each in flops] == pytest.approx([each.forward for each in expected])


def test_taps_lead_from_the_tower_to_their_mergers_and_to_the_decoder(tmp_path: Path) -> None:
    RELEASED["qwen3_vl"]().save_pretrained(tmp_path)
    model = describe(tmp_path)
    ends = [
        (model.layers[far.source].name.split(".", 2)[-1], model.layers[far.target].name)
        for far in model.far_inputs
    ]
    assert ends[:2] == [
        ("blocks.8", "model.visual.deepstack_merger_list.0"),
        ("deepstack_merger_list.0", "model.language_model.layers.0"),
    ]
    assert len(ends) == 6


def test_experts_are_counted_and_what_is_assumed_of_them_is_said(tmp_path: Path) -> None:
    qwen3_vl_moe().save_pretrained(tmp_path)
    model = describe(tmp_path)
    assert sum(model.experts) == 48 * 128 * 3 * 2048 * 768
    assert model.num_experts == 128 and model.chosen_experts == 8
    sparse = next(layer for layer in model.layers if layer.name.endswith(".layers.0"))
    assert [product.experts_per_chosen for product in sparse.products][-2:] == [1, 16]
    assert model.estimated == ("layers with experts: rows are spread evenly over experts",)
    # Experts of other families are not known so well.
    text = Qwen3MoeConfig(num_hidden_layers=2, hidden_size=4096, num_experts=16).to_dict()
    InternVLConfig(text_config=text).save_pretrained(tmp_path)
    other = describe(tmp_path)
    assert [note.split(":")[0] for note in other.estimated] == [
        "layers with experts",
        "activations of layers with experts",
    ]
    assert None not in [layer.saved for layer in other.layers]
