from __future__ import annotations

import pytest

from flowtrain.cost.layers import Layer, Product
from flowtrain.cost.rates import Rates, RateTimes
from flowtrain.cost.step import Row, step_seconds

BLOCK = Layer(name="block", part="backbone", products=(Product("tokens", 100.0),))
# Half of this rate counts: 100 FLOPs take 2 s.
RATES = Rates(flops=100.0, memory_bytes=1e30, pass_s=10.0, reduce_bytes=1.0)


@pytest.mark.parametrize(
    ("trained", "tokens", "expected"),
    [
        # Forward, both gradients, and the fixed time of a forward and of a backward pass.
        (["encoder", "backbone"], (1,), 3 * 2 + 2 * 10),
        (["encoder", "backbone"], (5,), 3 * 10 + 2 * 10),
        # A second microbatch is two passes more.
        (["encoder", "backbone"], (1, 1), 2 * (3 * 2 + 2 * 10)),
        # Without tokens nothing is called.
        (["encoder", "backbone"], (), 0.0),
    ],
)
def test_each_pass_of_a_layer_has_a_fixed_time(
    trained: list[str], tokens: tuple[int, ...], expected: float
) -> None:
    times = RateTimes(RATES, {"backbone": 0.0}, itemsize=4)
    rows = [Row(documents=[count], num_targets=0) for count in tokens]
    # A rank has a row without documents for its images, here none.
    rows.append(Row(documents=(), num_targets=0))
    assert step_seconds(times, [BLOCK], rows, trained).backbone == pytest.approx(expected)
