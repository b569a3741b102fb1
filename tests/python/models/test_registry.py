from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flowtrain.models import ModelError, versions
from flowtrain.models.registry import adapter_for
from flowtrain.models.tiny_qwen3_vl import SMALLEST, write_tiny_model


def test_a_configuration_that_is_not_json_is_an_error_that_names_it(tmp_path: Path) -> None:
    tmp_path.joinpath("config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json: not JSON"):
        adapter_for(tmp_path)


def test_another_version_of_transformers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_model(tmp_path, SMALLEST)
    monkeypatch.setattr(versions.importlib.metadata, "version", lambda _: "4.57.3")
    # With that version the adapter's module cannot be imported.
    monkeypatch.setitem(sys.modules, "flowtrain.models.qwen3_vl", None)
    with pytest.raises(ModelError, match=r"4\.57\.3 is installed; .*pip install"):
        adapter_for(tmp_path)
    monkeypatch.setattr(versions.importlib.metadata, "version", lambda _: "5.17rc1")
    with pytest.raises(ModelError, match="5.17rc1 is installed"):
        adapter_for(tmp_path)


def test_a_family_without_an_adapter_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    tmp_path.joinpath("config.json").write_text('{"model_type": "nosuch"}')
    with pytest.raises(
        ModelError, match="model_type=nosuch is not supported; choose a model of qwen3_vl"
    ):
        adapter_for(tmp_path)
