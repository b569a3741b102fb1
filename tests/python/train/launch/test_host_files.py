"""Digests of the model, which two hosts compare before one joins the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowtrain.config.model import ModelConfig
from flowtrain.train.launch.host_files import model_digests


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("config.json", {"tower"}),
        ("model.safetensors", {"tower"}),
        ("preprocessor_config.json", {"processor"}),
        ("chat_template.jinja", {"processor"}),
        ("generation_config.json", set()),
    ],
)
def test_another_file_is_another_tower_or_processor(
    name: str, changed: set[str], tmp_path: Path
) -> None:
    for each in ("config.json", "model.safetensors", "preprocessor_config.json"):
        tmp_path.joinpath(each).write_text("{}")
    model = ModelConfig(path=tmp_path)
    before = model_digests(model)
    tmp_path.joinpath(name).write_text('{"other": 1}')
    now = model_digests(model)
    assert {each for each in before if before[each] != now[each]} == changed
