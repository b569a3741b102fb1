from __future__ import annotations

import pytest

from flowtrain.cost import ModuleFlops, train_flops
from flowtrain.cost.peak import gpu_peak_flops

FORWARD = ModuleFlops(encoder=90.0, projector=10.0, backbone=1000.0)


@pytest.mark.parametrize(
    ("trained", "expected"),
    [
        ({"encoder", "projector", "backbone"}, 3 * 90 + 3 * 10 + 3 * 1000),
        ({"backbone"}, 90 + 10 + 3 * 1000),
        ({"projector", "backbone"}, 90 + 3 * 10 + 3 * 1000),
        # Gradients pass through the frozen backbone to the projector, and through both to the
        # encoder.
        ({"projector"}, 90 + 3 * 10 + 2 * 1000),
        ({"encoder"}, 3 * 90 + 2 * 10 + 2 * 1000),
        (set(), 90 + 10 + 1000),
    ],
)
def test_the_factor_depends_on_which_parts_train(trained: set[str], expected: float) -> None:
    assert train_flops(FORWARD, trained).total == expected


def test_weights_beside_adapters_have_no_gradients() -> None:
    parts = {"encoder", "projector", "backbone"}
    assert train_flops(FORWARD, parts, {"backbone"}).total == 3 * 90 + 3 * 10 + 2 * 1000
    # The gradient of an adapter's input passes through the part itself.
    assert train_flops(FORWARD, {"backbone"}, {"backbone"}).total == 90 + 10 + 2 * 1000


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA A100-SXM4-80GB", 312),
    ],
)
def test_a_gpu_has_the_peak_of_its_data_sheet(name: str, tera: float) -> None:
    assert gpu_peak_flops(name) == tera * 1e12
    assert gpu_peak_flops("Some Other Device") is None
