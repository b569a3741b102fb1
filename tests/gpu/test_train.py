"""A run with both worlds on one CUDA device, the pool in host memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import Run, run_tree, write_tiny_data

pytestmark = [pytest.mark.gpu, pytest.mark.limit(300)]

# Eight bits of mantissa, over a few layers of sums.
BF16_TOLERANCE = 0.05


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("bfloat16", BF16_TOLERANCE)])
def test_losses_on_a_gpu_are_those_on_the_host(
    dtype: str, tolerance: float, tmp_path: Path
) -> None:
    write_tiny_data(tmp_path / "data", text_only=0.2, multi_image=0.2)
    host = Run(run_tree(tmp_path / "host", tmp_path / "data")).succeed()
    model = {"device": "cuda", "dtype": dtype}
    device = Run(run_tree(tmp_path / "device", tmp_path / "data", model=model)).succeed()
    for mine, theirs in zip(device, host, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=tolerance)
