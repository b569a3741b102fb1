from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from support import run_tree, write_tiny_data

from flowtrain.cli.main import main
from flowtrain.config import load
from flowtrain_core import cuda


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    write_tiny_data(folder / "data", samples=4)
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(run_tree(folder / "run", folder / "data")))
    return path


def test_a_printed_configuration_is_the_one_that_would_run(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(config), "optim.lr=5e-4", "--print-config"]) == 0
    copy = tmp_path / "printed.yaml"
    copy.write_text(capsys.readouterr().out)
    assert load(copy) == load(config, ["optim.lr=5e-4"])


def test_a_sample_is_shown_with_its_cost(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "show", str(config), "--index", "1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    [grid] = shown["image_grid_thw"]
    assert shown["tokens"]["projector"] == grid[1] * grid[2] // 4
    assert shown["tokens"]["backbone"] == len(shown["input_ids"]) == len(shown["labels"])
    assert all(flops > 0 for flops in shown["flops"].values())


def test_an_error_is_one_line_and_exit_code_two(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(config), "flow.encodrs=2"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "flow.encodrs: there is no such field; did you mean encoders?" in said


def test_the_doctor_finds_nothing_bad_where_the_tests_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["transformers"]["state"] == "ok"
    assert found["flowtrain_core"]["state"] == "ok"
    assert found["edge"]["text"].startswith("takes shared memory: ")
    assert (found["cuda"]["state"] == "ok") == cuda.available()
    assert found["cuda"]["text"] == cuda.why_not() or cuda.available()
