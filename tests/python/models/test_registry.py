from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from flowtrain.models import ModelError, versions
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import SMALLEST, write_tiny_model


def test_a_configuration_that_is_not_json_is_an_error_that_names_it(tmp_path: Path) -> None:
    tmp_path.joinpath("config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json: not JSON"):
        family_for(tmp_path)


def test_another_version_of_transformers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_model(tmp_path, SMALLEST)
    monkeypatch.setattr(versions.importlib.metadata, "version", lambda _: "4.57.3")
    # With that version the family's module cannot be imported.
    monkeypatch.setitem(sys.modules, "flowtrain.models.qwen3_vl", None)
    with pytest.raises(ModelError, match=r"4\.57\.3 is installed; .*pip install"):
        family_for(tmp_path)
    monkeypatch.setattr(versions.importlib.metadata, "version", lambda _: "5.17rc1")
    with pytest.raises(ModelError, match="5.17rc1 is installed"):
        family_for(tmp_path)


def test_an_auxiliary_loss_of_the_router_is_refused_and_not_left_out(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, SMALLEST, family="qwen3_vl_moe")
    config = tmp_path / "config.json"
    tree = json.loads(config.read_text())
    tree["text_config"]["output_router_logits"] = True
    config.write_text(json.dumps(tree))
    with pytest.raises(ModelError, match=r"output_router_logits=true .*auxiliary loss.* false"):
        family_for(tmp_path)


def test_a_model_type_without_a_family_is_an_error_that_says_how_to_add_one(
    tmp_path: Path,
) -> None:
    tmp_path.joinpath("config.json").write_text('{"model_type": "nosuch"}')
    with pytest.raises(ModelError, match=r"nosuch has no family; choose .* llava.*, or write a"):
        family_for(tmp_path)


def test_another_package_can_add_a_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tiny_model(tmp_path / "model", SMALLEST)
    config = tmp_path / "model" / "config.json"
    config.write_text(config.read_text().replace('"qwen3_vl"', '"added"'))
    package = tmp_path / "added-1.dist-info"
    package.mkdir()
    package.joinpath("METADATA").write_text("Name: added\nVersion: 1\n")
    package.joinpath("entry_points.txt").write_text(
        "[flowtrain.families]\nadded = unittest.mock:Mock\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert type(family_for(tmp_path / "model")).__name__ == "Mock"
