"""Times from data sheets, against values computed by hand."""

from __future__ import annotations

import pytest

from flowtrain.cost import Counts, Layer, Product, Saved
from flowtrain.cost.timing import DataSheetTiming, Efficiency

LAYER = Layer(
    name="layer",
    part="backbone",
    products=(Product("tokens", 1000.0), Product("pairs", 4.0, has_weight=False)),
    saved=(Saved("tokens", 3), Saved("tokens", 1, itemsize=4)),
)


def timing(**changes: object) -> DataSheetTiming:
    given: dict[str, object] = {
        "flops_per_s": 1e6,
        "memory_bytes_per_s": 1e5,
        "linear": Efficiency(maximum=0.5, half=100, smallest=10, source="test"),
        "attention": Efficiency(maximum=0.25, half=0, smallest=1, source="test"),
    }
    return DataSheetTiming(**(given | changes))  # type: ignore[arg-type]


def test_classes_of_products_have_their_own_efficiency() -> None:
    found = timing().seconds(LAYER, Counts(tokens=200, pairs=20_000), shards=2)
    # 100 rows of a rank: half of 0.5 of the peak.
    linear = 1000 * 100 / 1e6 / 0.25
    attention = 4 * 20_000 / 2 / 1e6 / 0.25
    moved = 2 * 200 * (3 * 2 + 4) / 2 / 1e5
    assert found.forward == pytest.approx(linear + attention + moved)
    assert found.backward_input == pytest.approx(linear + 2.5 * attention + moved)
    assert found.backward_weight == pytest.approx(linear)


def test_a_product_takes_no_less_than_its_weights_take_to_be_read() -> None:
    slow = timing(memory_bytes_per_s=1.0, extrapolates=True)
    (found, fewer) = (slow.seconds(LAYER, Counts(tokens=n)).backward_weight for n in (2, 1))
    assert found == fewer == pytest.approx(1000)


def test_an_adapter_moves_its_values_and_the_weight_beside_it_has_no_gradient() -> None:
    adapter = Product("tokens", 1.0, moves=5.0)
    adapted = Layer(
        name="layer", part="backbone", products=(Product("tokens", 1000.0, frozen=True), adapter)
    )
    found = timing().seconds(adapted, Counts(tokens=200), shards=2)
    moved = 100 * 5 * 2 / 1e5
    assert found.forward == found.backward_input == pytest.approx(1000 * 100 / 1e6 / 0.25 + moved)
    assert found.backward_weight == pytest.approx(moved)


def test_experts_have_the_efficiency_of_their_own_rows() -> None:
    sparse = Layer(
        name="experts",
        part="backbone",
        products=(Product("tokens", 1000.0, experts_per_chosen=4),),
    )

    def weight_s(ep: int, **changes: object) -> float:
        counts = Counts(tokens=800)
        return timing(**changes).seconds(sparse, counts, shards=2, ep=ep).backward_weight

    # Of the 400 rows of a rank an expert has 100, half of 0.5 of the peak; with ep=8, 800.
    assert weight_s(1) == pytest.approx(1000 * 400 / 1e6 / 0.25)
    assert weight_s(8) == pytest.approx(1000 * 400 / 1e6 / (0.5 * 800 / 900))
    # The weights of all experts are read: four times those that a row takes.
    assert weight_s(1, memory_bytes_per_s=1.0) == pytest.approx(4 * 1000 / 2)
    with pytest.raises(ValueError, match="experts: 5 rows of an expert are fewer than the 10"):
        timing().seconds(sparse, Counts(tokens=20))


def test_sizes_outside_of_the_range_are_refused() -> None:
    with pytest.raises(ValueError, match="layer: 9 rows of a rank are fewer than the 10"):
        timing().seconds(LAYER, Counts(tokens=9))
    assert timing(extrapolates=True).seconds(LAYER, Counts(tokens=9)).forward > 0
    with pytest.raises(ValueError, match=r"flops_per_s=0: it must be above 0"):
        timing(flops_per_s=0)
