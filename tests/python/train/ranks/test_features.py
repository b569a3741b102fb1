"""Features of another model, processor or dtype have another context; waiting ones are bounded."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from flowtrain.cache import CacheFolder, Context, Reader
from flowtrain.data.pixel_maker import StoredRows
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import SMALLEST, write_tiny_model
from flowtrain.train.ranks import features
from flowtrain.train.ranks.feature_context import feature_context
from flowtrain.train.ranks.features import FeatureCache

CPU = torch.device("cpu")


def context_of(folder: Path, encoder: torch.nn.Module, **changes: Any) -> Context:
    given: dict[str, Any] = {
        "family": family_for(folder),
        "dtype": torch.float32,
        "row_dtype": torch.float32,
        "device": CPU,
        "compiled": False,
    }
    return feature_context(encoder=encoder, folder=folder, **(given | changes))


def encoder_of(folder: Path) -> torch.nn.Module:
    return family_for(folder).build(
        "encoder", weights=None, seed=0, dtype=torch.float32, device=CPU
    )


def test_only_equal_towers_processors_and_dtypes_share_features(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, SMALLEST)
    encoder = encoder_of(tmp_path)
    same = context_of(tmp_path, encoder).name
    assert context_of(tmp_path, encoder_of(tmp_path)).name == same
    names = {same}

    def add(context: Context) -> None:
        assert context.name not in names
        names.add(context.name)

    add(context_of(tmp_path, encoder, dtype=torch.bfloat16))
    add(context_of(tmp_path, encoder, row_dtype=torch.bfloat16))
    add(context_of(tmp_path, encoder, compiled=True))
    add(context_of(tmp_path, encoder, family=family_for(tmp_path, projector_side="backbone")))
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        add(context_of(tmp_path, encoder))
    finally:
        torch.set_num_threads(before)
    first, *_, last = encoder.parameters()
    for parameter in (first, last):
        with torch.no_grad():
            parameter.view(-1)[-1] += 1e-6
        add(context_of(tmp_path, encoder))
    for name in ("preprocessor_config.json", "config.json"):
        path = tmp_path / name
        path.write_text(json.dumps(json.loads(path.read_text()) | {"image_mean": [0.4] * 3}))
        add(context_of(tmp_path, encoder))


@pytest.fixture
def make(tmp_path: Path) -> Callable[[], FeatureCache]:
    return lambda: FeatureCache(
        CacheFolder(tmp_path / "cache"),
        lambda: Context({}),
        width=4,
        dtype=torch.bfloat16,
        device=CPU,
        always=True,
        reports=True,
    )


def test_rows_return_as_they_were_stored(make: Callable[[], FeatureCache]) -> None:
    cache = make()
    rows = torch.randn(3, 4).to(torch.bfloat16)
    cache.keep(b"k" * 32, rows)
    cache.close()
    stored = Reader(Path(make().folder)).get(b"k" * 32)
    assert stored is not None
    assert torch.equal(make().rows(StoredRows(stored, 0.1), Mock()), rows)


def test_a_slow_disk_leaves_rows_out_and_holds_up_nobody(
    make: Callable[[], FeatureCache],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    go = threading.Event()
    put = features.Writer.put

    def slow(*given: Any) -> bool:
        go.wait()
        return put(*given)

    monkeypatch.setattr(features.Writer, "put", slow)
    monkeypatch.setattr(features, "_MAX_WAITING_BYTES", 1000)
    cache = make()
    for number in range(20):
        cache.keep(bytes([number]) * 32, torch.zeros(50, 4, dtype=torch.bfloat16))
    go.set()
    cache.close()
    stored = len(Reader(Path(make().folder)))
    assert 2 <= stored <= 4
    assert capsys.readouterr().err.count("some are left out") == 1
