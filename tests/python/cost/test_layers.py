from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from flowtrain.config.parallel import ModuleParallel, ParallelConfig
from flowtrain.cost import Counts, ForwardFlops, Layer, Product, Saved, layer_bytes, layer_flops
from flowtrain.cost.activations import levels_of
from flowtrain.cost.decoder import decoder_layers
from flowtrain.cost.tower import Block

LAYERS = [
    Layer(name="embed", part="encoder", products=(Product("patches", 1.0, is_first=True),)),
    Layer(
        name="block",
        part="encoder",
        products=(
            Product("vision_tokens", 10.0),
            Product("vision_pairs", 100.0, has_weight=False),
        ),
    ),
    Layer(
        name="unread",
        part="encoder",
        products=(Product("vision_tokens", 5.0),),
        reaches_loss=False,
        left_out=True,
    ),
    Layer(
        name="project",
        part="projector",
        products=(Product("projected", 1e3, is_first=True), Product("projected", 2e3)),
    ),
    Layer(
        name="decode",
        part="backbone",
        products=(Product("tokens", 1e4), Product("pairs", 1e5, has_weight=False)),
    ),
]
ONE_EACH = Counts(*(1 for _ in Counts._fields))


@pytest.mark.parametrize(
    ("trained", "backward"),
    [
        # Pixels have no gradient.
        ({"encoder", "projector", "backbone"}, [1, 220, 6e3, 2.2e5]),
        # Nothing before the projector trains, so that its input needs no gradient.
        ({"projector"}, [0, 0, 1e3 + 4e3, 2.1e5]),
        ({"encoder"}, [1, 220, 3e3, 2.1e5]),
        ({"backbone"}, [0, 0, 0, 2.2e5]),
        (set(), [0, 0, 0, 0]),
    ],
)
def test_gradients_are_counted_where_something_before_them_trains(
    trained: set[str], backward: list[float]
) -> None:
    found = layer_flops(LAYERS, ONE_EACH, trained)
    assert [flops.name for flops in found] == ["embed", "block", "project", "decode"]
    assert [flops.backward for flops in found] == backward


def test_layers_and_parts_have_the_same_forward_flops() -> None:
    counts = Counts(*range(2, 2 + len(Counts._fields)))
    by_part = ForwardFlops(LAYERS)(counts)
    by_layer = layer_flops(LAYERS, counts, ())
    for part in ("encoder", "projector", "backbone"):
        forward = sum(flops.forward for flops in by_layer if flops.part == part)
        assert getattr(by_part, part) == forward > 0


def test_only_the_plain_model_computes_what_nothing_reads() -> None:
    unread = layer_flops(LAYERS, ONE_EACH, {"encoder"}, with_left_out=True)[2]
    assert (unread.name, unread.forward, unread.backward) == ("unread", 5.0, 0.0)


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(ValueError, match=r"trained='vision' is no part; choose from encoder"):
        layer_flops(LAYERS, ONE_EACH, {"vision"})


def test_experts_of_an_unknown_kind_are_refused() -> None:
    text = SimpleNamespace(
        model_type="mixtral",
        hidden_size=8,
        num_attention_heads=2,
        num_hidden_layers=1,
        intermediate_size=16,
        num_local_experts=4,
        vocab_size=10,
    )
    with pytest.raises(ValueError, match="model_type=mixtral: experts in num_local_experts"):
        decoder_layers(text)


def test_a_layer_whose_tensors_are_not_known_is_refused() -> None:
    layers = [Layer(name="experts", part="backbone", saved=None)]
    assert layer_bytes(layers, ONE_EACH, set(), itemsize=2) == []
    with pytest.raises(ValueError, match="experts: what its backward pass keeps is not known"):
        layer_bytes(layers, ONE_EACH, {"backbone"}, itemsize=2)


def test_a_recomputed_layer_keeps_its_input_and_makes_the_rest_again() -> None:
    saved = (Saved("tokens", 5), Saved("tokens", 1, itemsize=4, of_attention=True))
    block = Layer(name="block", part="backbone", saved=saved, takes=("tokens", 3))
    layers = [Layer(name="embedding", part="backbone", saved=saved), block, block]

    def found(**recompute: Any) -> list[tuple[float, float]]:
        levels = levels_of(layers, ParallelConfig(backbone=ModuleParallel(**recompute)))
        sizes = layer_bytes(layers, Counts(tokens=10), {"encoder"}, itemsize=2, levels=levels)
        return [(layer.kept, layer.recomputed) for layer in sizes]

    whole = (140, 0)
    assert found() == [whole] * 3
    assert found(recompute="full") == [whole, (60, 140), (60, 140)]
    assert found(recompute="selective") == [whole, (100, 100), (100, 100)]
    assert found(recompute="full", recompute_layers=1) == [whole, (60, 140), whole]


@pytest.mark.parametrize("inner", [16, 48, 64])
def test_products_of_a_block_add_up_also_where_their_sides_are_equal(inner: int) -> None:
    block = Block(width=16, heads=2, inner=inner, activation="gelu")
    product = block.linear()
    assert product.flops == 8.0 * 16**2 + 4.0 * 16 * inner
    # Harmonic mean: the time of the whole is the sum of the times of its parts.
    seconds = 6 * 16**2 / 48 + 2 * 16**2 / 16 + 4 * 16 * inner / inner
    assert product.flops / product.side == pytest.approx(seconds)
