from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from flowtrain.config.parallel import Recompute
from flowtrain.cost.layers import Layer, Product, Saved
from flowtrain.cost.rates import Rates, RateTimes
from flowtrain.cost.step import Row, step_seconds
from flowtrain.cost.timing import PassSeconds

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


@dataclass(frozen=True)
class Passes:
    """Layers take 10 s forward, 4 of them in attention, and 1 s for each kind of gradient."""

    def seconds(self, *_: Any, **__: Any) -> PassSeconds:
        return PassSeconds(forward=10, backward_input=1, backward_weight=1, attention=4)

    def update_seconds(self, _: Sequence[str]) -> float:
        return 0.0

    accumulate_seconds = update_seconds


@pytest.mark.parametrize(
    ("levels", "logit_bytes", "again"),
    [
        (("none", "none", "none"), 100, 0),
        (("full", "none", "none"), 100, 10),
        (("full", "full", "none"), 100, 20),
        (("selective", "none", "none"), 100, 6),
        (("none", "none", "none"), 99, 10),
    ],
)
def test_what_is_computed_again_takes_its_forward_pass(
    levels: list[Recompute], logit_bytes: int, again: float
) -> None:
    logits = Saved("targets", 5, itemsize=4, in_chunks=True)
    layers = [BLOCK, BLOCK, Layer(name="head", part="backbone", saved=(logits,))]
    row = Row(documents=[9], num_targets=5)

    def seconds(trained: list[str], **given: Any) -> float:
        return step_seconds(Passes(), layers, [row], trained, **given).backbone

    for trained in (["backbone"], ["encoder"]):
        found = seconds(trained, levels=levels, logit_bytes=logit_bytes)
        assert found == seconds(trained) + again
    # Without a backward pass nothing is.
    assert seconds([], levels=levels, logit_bytes=logit_bytes) == 30
