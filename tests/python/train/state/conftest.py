from __future__ import annotations

from pathlib import Path

import pytest

from flowtrain.train.state.resume import FINGERPRINT


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of a model, data, and the folder of a run."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen3_vl"}')
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    (tmp_path / "data.jsonl").write_text("{}\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / FINGERPRINT).write_text("{}")
    return tmp_path
