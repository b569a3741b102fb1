"""The expected share of features that are in the cache of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowtrain.cache import CacheFolder, Context, Writer
from flowtrain.config import from_dict
from flowtrain.plan.cached import expected_hits
from tests.planned import small_work

WORKLOAD = small_work().workload
SAMPLES = 2 * len(WORKLOAD)


def expected(cache: Path, **train: Any) -> float:
    tree = {
        "run": "run",
        "model": {"config": "model"},
        "data": {"path": "data.jsonl"},
        "train": {"global_batch": 32, **train},
        "flow": {"mode": "frozen", "cache": {"path": str(cache)}},
    }
    return expected_hits(from_dict(tree), WORKLOAD, samples=SAMPLES)


def test_further_epochs_and_what_is_stored_are_hits(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    epoch = SAMPLES // 32
    assert expected(cache, steps=epoch // 2) == expected(cache, steps=epoch) == 0
    assert expected(cache, steps=4 * epoch) == expected(cache, epochs=4) == 0.75
    assert not cache.exists()
    # Half of the images are stored, each of the other half is encoded once.
    folder = CacheFolder(cache)
    with folder.use(Context({})) as context:
        writer = Writer(folder, context)
        for image in range(int((WORKLOAD.visual_tokens > 0).sum())):
            assert writer.put(image.to_bytes(32, "big"), memoryview(b"rows"))
        writer.close()
    assert expected(cache, epochs=1) == pytest.approx(0.5)
    assert expected(cache, epochs=4) == pytest.approx(1 - 0.5 / 4)


def test_a_run_without_a_cache_or_of_a_stream_has_no_hits(tmp_path: Path) -> None:
    tree = {
        "run": "run",
        "model": {"config": "model"},
        "data": {"path": "data.jsonl"},
        "train": {"steps": 100},
    }
    config = from_dict(tree)
    assert expected_hits(config, WORKLOAD, samples=8) == 0
    tree["flow"] = {"mode": "frozen", "cache": {"path": str(tmp_path / "cache")}}
    assert expected_hits(from_dict(tree), WORKLOAD, samples=0) == 0
