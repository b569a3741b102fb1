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
    found = timing().seconds(LAYER, Counts(tokens=200, pairs=20_000), cp=2)
    # 100 rows of a rank: half of 0.5 of the peak.
    linear = 1000 * 100 / 1e6 / 0.25
    attention = 4 * 20_000 / 2 / 1e6 / 0.25
    moved = 2 * 200 * (3 * 2 + 4) / 2 / 1e5
    assert found.forward == pytest.approx(linear + attention + moved)
    assert found.attention == pytest.approx(attention)
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
    found = timing().seconds(adapted, Counts(tokens=200), cp=2)
    moved = 100 * 5 * 2 / 1e5
    assert found.forward == found.backward_input == pytest.approx(1000 * 100 / 1e6 / 0.25 + moved)
    assert found.backward_weight == pytest.approx(moved)


def linear_s(product: Product, *, tp: int = 1, cp: int = 1, **changes: object) -> float:
    layer = Layer(name="layer", part="backbone", products=(product,))
    return timing(**changes).seconds(layer, Counts(tokens=400), tp=tp, cp=cp).backward_weight


def test_tensor_parallelism_divides_the_width_and_context_parallelism_the_rows() -> None:
    # 400 rows: four fifths of 0.5 of the peak, however many ranks share the width; 100: a half.
    assert linear_s(Product("tokens", 1000.0), tp=4) == pytest.approx(1000 * 400 / 4 / 1e6 / 0.4)
    assert linear_s(Product("tokens", 1000.0), cp=4) == pytest.approx(1000 * 400 / 4 / 1e6 / 0.25)
    # 1200 of a side are more than the rows, and 300 on each rank fewer: three quarters.
    wide = Product("tokens", 1000.0, side=1200)
    assert linear_s(wide) == pytest.approx(1000 * 400 / 1e6 / 0.4)
    assert linear_s(wide, tp=4) == pytest.approx(1000 * 400 / 4 / 1e6 / (0.5 * 0.75))
    # All ranks that share the rows read the same weights.
    reads = {ranks: linear_s(wide, **{ranks: 4}, memory_bytes_per_s=1.0) for ranks in ("tp", "cp")}
    assert reads == {"tp": pytest.approx(1000 / 4), "cp": pytest.approx(1000)}


@pytest.mark.parametrize(("tp", "flops"), [(1, 1000), (2, 500), (4, 600 / 4 + 400 / 2)])
def test_ranks_beyond_the_heads_of_keys_and_values_repeat_them(tp: int, flops: float) -> None:
    product = Product("tokens", 1000.0, kv_flops=400.0, kv_heads=2)
    assert linear_s(product, tp=tp) == pytest.approx(flops * 400 / 1e6 / 0.4)


def test_a_query_meets_its_keys_in_as_many_calls_as_ranks_share_the_tokens() -> None:
    layer = Layer(
        name="attention", part="backbone", products=(Product("pairs", 4.0, has_weight=False),)
    )
    half = Efficiency(maximum=0.25, half=100, smallest=1, source="test")
    counts = Counts(tokens=200, pairs=20_000)

    def forward_s(**ranks: int) -> float:
        return timing(attention=half).seconds(layer, counts, **ranks).forward

    # 100 keys of a query: half of 0.25 of the peak. Then 4 calls, each with 25 keys and of a
    # quarter of the queries: a fifth of 0.25.
    assert forward_s(tp=4) == pytest.approx(4 * 20_000 / 4 / 1e6 / 0.125)
    assert forward_s(cp=4) == pytest.approx(4 * (4 * 50 * 25 / 1e6 / 0.05))


def test_experts_have_the_efficiency_of_their_own_rows() -> None:
    sparse = Layer(
        name="experts",
        part="backbone",
        products=(Product("tokens", 1000.0, experts_per_chosen=4),),
    )

    def weight_s(ep: int, **changes: object) -> float:
        counts = Counts(tokens=800)
        return timing(**changes).seconds(sparse, counts, cp=2, ep=ep).backward_weight

    # Of the 400 rows of a rank an expert has 100, half of 0.5 of the peak; with ep=8, 800.
    assert weight_s(1) == pytest.approx(1000 * 400 / 1e6 / 0.25)
    assert weight_s(8) == pytest.approx(1000 * 400 / 1e6 / (0.5 * 800 / 900))
    # The weights of all experts are read: four times those that a row takes.
    assert weight_s(1, memory_bytes_per_s=1.0) == pytest.approx(4 * 1000)
    with pytest.raises(ValueError, match="experts: 5 rows of an expert are fewer than the 10"):
        timing().seconds(sparse, Counts(tokens=20))


def test_sizes_outside_of_the_range_are_refused() -> None:
    with pytest.raises(ValueError, match="layer: 9 rows of a rank are fewer than the 10"):
        timing().seconds(LAYER, Counts(tokens=9))
    assert timing(extrapolates=True).seconds(LAYER, Counts(tokens=9)).forward > 0
    with pytest.raises(ValueError, match=r"flops_per_s=0: it must be above 0"):
        timing(flops_per_s=0)
