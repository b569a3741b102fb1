"""A demo deletes only what a demo wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowtrain.cli.main import main
from flowtrain.train import demo
from flowtrain.train.demo import prepare_folder
from flowtrain.train.state.run_folder import lock_run


@pytest.mark.parametrize("name", ["data", "run"])
def test_a_folder_with_files_of_the_user_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / name / "mine"
    mine.parent.mkdir()
    mine.touch()
    assert main(["demo", "--out", str(tmp_path)]) == 2
    errors = capsys.readouterr().err
    assert f"no demo wrote {mine.parent}; choose another folder" in errors
    assert [*tmp_path.iterdir()] == [mine.parent]
    assert mine.exists()


def test_an_earlier_demo_is_deleted_unless_it_is_training_or_the_overrides_are_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare_folder(tmp_path, keep_data=False)
    data, run = tmp_path / "data", tmp_path / "run"
    data.mkdir()
    run.mkdir()
    assert main(["demo", "--out", str(tmp_path), "flow.encodrs=2"]) == 2
    with lock_run(run):
        assert main(["demo", "--out", str(tmp_path)]) == 2
    assert "another launcher is training there" in capsys.readouterr().err
    assert data.exists()
    assert run.exists()
    prepare_folder(tmp_path, keep_data=True)
    assert data.exists()
    assert not run.exists()
    prepare_folder(tmp_path, keep_data=False)
    assert not data.exists()


def test_data_of_which_a_demo_wrote_a_part_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(folder: Path, **_: object) -> None:
        folder.mkdir(parents=True)
        folder.joinpath("train.jsonl").write_text("{}\n{")
        raise KeyboardInterrupt

    def write(folder: Path, **_: object) -> None:
        folder.mkdir(parents=True)
        for name in ("train.jsonl", "heldout.jsonl"):
            folder.joinpath(name).write_text("{}\n")

    def train(_: object) -> None:
        raise RuntimeError("trains")

    monkeypatch.setattr(demo, "train", train)
    monkeypatch.setattr(demo, "write_digits", interrupted)
    assert main(["demo", "--out", str(tmp_path)]) == 130
    monkeypatch.setattr(demo, "write_digits", write)
    for _ in range(2):
        assert main(["demo", "--out", str(tmp_path), "--keep-data"]) == 1
        assert (tmp_path / "data" / "train.jsonl").read_text() == "{}\n"
        monkeypatch.setattr(demo, "write_digits", interrupted)


def test_data_that_the_end_of_the_demo_could_not_use_is_refused_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "train", pytest.fail)
    own = tmp_path / "own.jsonl"
    own.write_text("{}\n")
    out = tmp_path / "out"
    for override in (f"data.path={own}", f"data.sources=[{{path: {own}}}]"):
        others = ["data.path=null"] if "sources" in override else []
        assert main(["demo", "--out", str(out), override, *others]) == 2
        said = capsys.readouterr().err
        assert override.partition("=")[0] in said
        assert "call `flowtrain train run.yaml`" in said
    assert not out.exists()
    prepare_folder(out, keep_data=True)
    (out / "data").mkdir()
    (out / "data" / "train.jsonl").write_text("{}\n")
    assert main(["demo", "--out", str(out), "--keep-data"]) == 2
    assert f"{out}/data/heldout.jsonl: the held-out strips are missing" in capsys.readouterr().err
