from __future__ import annotations

import pytest

from flowtrain.cost import ModuleFlops, train_flops
from flowtrain.cost.peak import gpu_peak_flops

FORWARD = ModuleFlops(encoder=90.0, projector=10.0, backbone=1000.0)


@pytest.mark.parametrize(
    ("encoder", "backbone", "expected"),
    [
        (True, True, 3 * 100 + 3 * 1000),
        (False, True, 1 * 100 + 3 * 1000),
        # Gradients pass through the frozen backbone to the encoder.
        (True, False, 3 * 100 + 2 * 1000),
        (False, False, 1 * 100 + 1 * 1000),
    ],
)
def test_the_factor_depends_on_which_modules_train(
    encoder: bool, backbone: bool, expected: float
) -> None:
    assert train_flops(FORWARD, encoder=encoder, backbone=backbone) == expected


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
