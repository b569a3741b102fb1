from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from support import run_tree

from flowtrain.config import from_dict
from flowtrain.data import DataError
from flowtrain.data.samples import SampleReader
from flowtrain.train.launch.first_samples import first_samples


def test_a_few_reads_are_timed_with_pixels_whatever_is_wrong_with_these(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def pixels(reader: SampleReader, sample: int, image: int, grid: Any) -> None:
        read.append(sample)
        time.sleep(0.02)
        raise DataError("the file is broken")

    monkeypatch.setattr(SampleReader, "pixels", pixels)
    for limit in ("_SECONDS", "_TIMED_SECONDS"):  # However busy this machine is.
        monkeypatch.setattr(f"flowtrain.train.launch.first_samples.{limit}", 60.0)
    config = from_dict(run_tree(tmp_path / "run", data, train={"global_batch": 4}))
    found = first_samples(config)
    assert len(found.sizes) == 16
    images = {meta.index: len(meta.grids) for meta in found.sizes[:8]}
    assert read == [sample for sample, count in images.items() for _ in range(2 * count)]
    assert found.read_s >= 0.02 * sum(images.values()) / 8 > 0
