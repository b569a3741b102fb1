from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from support import one_thread, run_tree

from flowtrain.cli.main import main
from flowtrain.config import dump, load
from flowtrain.cost.tables import Tables
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import SMALLEST, write_tiny_model
from flowtrain.train.launch.threads import threads_of
from flowtrain.train.profile.main import main as measure

SIZES = {"microbatch_tokens": 32}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profile")
    write_tiny_model(folder / "model", SMALLEST)
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(run_tree(folder / "run", folder, train=SIZES)))
    path.write_text(dump(load(path)))
    return path


def arguments(config: Path, out: Path, *more: str) -> list[str]:
    options = {"--out": str(out), "--seconds": "0", "--threads": "1", "--image-tokens": "16"}
    options["--depth"] = "0"
    options |= dict(zip(more[::2], more[1::2], strict=True))
    return [str(config), *(word for option in options.items() for word in option), "--json"]


def test_a_profile_is_written_and_continued_until_nothing_is_missing(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "profile.json"
    with one_thread():
        assert measure(arguments(config, out)) == 0
        first = json.loads(capsys.readouterr().out)
        assert measure(arguments(config, out, "--seconds", "100")) == 0
    second = json.loads(capsys.readouterr().out)
    assert first["missing"] == first["shapes"] and second["missing"] == 0
    assert first["update_s"] == second["update_s"]
    layers = family_for(load(config).model.folder).layers
    tables = Tables.load(out, layers)
    assert second["tables"] == json.loads(json.dumps(tables.summary()))
    assert {layer.name for layer in layers} >= {row["layer"] for row in second["tables"][:1]}


def test_a_profile_of_other_conditions_is_one_line_and_exit_code_two(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "profile.json"
    with one_thread():
        assert measure(arguments(config, out)) == 0
        capsys.readouterr()
        before = out.read_text()
        assert measure(arguments(config, out, "--threads", "2")) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"{out}: measured for threads=1, and not for 2; profile into another file" in said
    assert out.read_text() == before


@pytest.mark.parametrize("words", [[], ["run.yaml", "--model", "model"]])
def test_a_profile_is_of_a_run_or_of_a_model(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *words]) == 2
    assert "give exactly one of the two" in capsys.readouterr().err


def test_the_configuration_of_a_model_takes_overrides(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    monkeypatch.setattr(
        "flowtrain.train.profile.launch.run_profile", lambda run, *_, **__: taken.append(run) or 0
    )
    model = config.parent / "model"
    assert (
        main(["profile", "model.compute_dtype=bfloat16", "train.threads=3", "--model", str(model)])
        == 0
    )
    assert main(["profile", str(config), "model.compute_dtype=bfloat16"]) == 0
    assert [run.model.folder for run in taken] == [model, model]
    assert [run.model.pass_dtype for run in taken] == ["bfloat16", "bfloat16"]
    assert [threads_of(run) for run in taken] == [3, 1]
