"""What layers cost where some are frozen, or read outputs of layers far before them."""

from __future__ import annotations

from typing import Any

import pytest

from flowtrain.plan.partition import Layers, Tap


def layers(count: int = 4, **changes: Any) -> Layers:
    return Layers.of(
        **{
            "forward_s": [1.0] * count,
            "backward_input_s": 2.0,
            "backward_weight_s": 4.0,
            "state_bytes": 1,
            "activation_bytes": [[10] * count, [6] * count, [1] * count],
            "recompute_s": [[0.0] * count, [0.5] * count, [1.0] * count],
            "output_bytes": 100,
            **changes,
        }
    )


def test_layers_that_no_gradient_reaches_have_no_backward_pass() -> None:
    # The third layer is frozen, but gradients pass it on their way to the second.
    made = layers(trained=[False, True, False, True])
    assert made.backward_s().tolist() == [0, 6, 2, 6]
    assert made.saved_bytes().tolist() == [[0, 10, 10, 10], [0, 6, 6, 6], [0, 1, 1, 1]]
    assert made.extra_s().tolist() == [[0, 0, 0, 0], [0, 0.5, 0.5, 0.5], [0, 1, 1, 1]]
    forward, backward = made.cut_bytes()
    assert (forward.tolist(), backward.tolist()) == ([100, 100, 100, 0], [0, 100, 100, 0])


def test_a_tap_is_sent_across_every_cut_up_to_its_last_reader() -> None:
    taps = [Tap(source=0, target=3, bytes=7), Tap(source=1, target=2, bytes=30)]
    forward, backward = layers(taps=taps).cut_bytes()
    assert forward.tolist() == backward.tolist() == [107, 137, 107, 0]
    # No gradient returns to the frozen source of the first tap.
    forward, backward = layers(trained=[False, True, True, True], taps=taps).cut_bytes()
    assert (forward.tolist(), backward.tolist()) == ([107, 137, 107, 0], [0, 130, 100, 0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"forward_s": []}, r"forward_s: shape must be \[num_layers\], 1 to 256, not \[0\]"),
        ({"backward_input_s": [1.0, 2.0]}, r"backward_input_s: shape must be \[4\], not \[2\]"),
        ({"forward_s": [1, 1, -2, 1]}, r"forward_s\[2\]=-2.0: must be 0 or more, and finite"),
        ({"backward_weight_s": float("nan")}, r"backward_weight_s\[0\]=nan: must be 0 or more"),
        ({"state_bytes": 1.5}, "state_bytes: must be integers, not float64"),
        ({"output_bytes": -1}, r"output_bytes\[0\]=-1: must be from 0 to 2\^40"),
        ({"recompute_s": 1.0}, "level 'none' recomputes nothing, not 1.0 s"),
        ({"taps": [Tap(source=2, target=2, bytes=1)]}, r"taps\[0\]: source=2 must be before"),
        ({"taps": [Tap(source=2, target=4, bytes=1)]}, "both from 0 to 3"),
        ({"taps": [Tap(source=0, target=1, bytes=-1)]}, r"taps\[0\].bytes=-1: must be from 0"),
    ],
)
def test_a_bad_value_is_named_with_its_place(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layers(**changes)
