from __future__ import annotations

import resource
import shutil
from pathlib import Path

import pytest
from linear_run import configuration, train

from flowtrain.config import ConfigError, load
from flowtrain.train.state.logs import SPOOL
from flowtrain.train.state.run_folder import open_run


def test_fewer_steps_than_the_checkpoint_has_are_refused(folder: Path) -> None:
    config = configuration(folder)
    with open_run(config, resume=False) as trained:
        assert trained == 0
        train(config)
    with open_run(config, resume=True) as trained:
        assert trained == 6
    fewer = configuration(folder, train={"steps": 5})
    message = r"train\.steps=5: .*step-00000006 has 6 steps already"
    with pytest.raises(ConfigError, match=message), open_run(fewer, resume=True):
        pass


def test_a_folder_with_only_a_checkpoint_holds_a_run(folder: Path) -> None:
    config = configuration(folder)
    train(config)
    with pytest.raises(ConfigError, match="it holds a run"), open_run(config, resume=False):
        pass


def test_a_start_on_a_full_disk_names_the_file_and_can_be_repeated(folder: Path) -> None:
    config = configuration(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with (
            pytest.raises(OSError, match=r"run/config\.yaml"),
            open_run(config, resume=False),
        ):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with open_run(config, resume=False) as trained:
        assert trained == 0
    assert not list(config.run.glob("*.part"))


def test_an_attempt_has_the_edges_of_its_own_ranks_only(folder: Path) -> None:
    config = configuration(folder)
    edges = config.run / "edges"
    for steps, left in ((0, []), (config.train.steps, ["backbone.1.txt"])):
        if steps:
            train(config)
        edges.mkdir()
        (edges / "backbone.1.txt").touch()
        with open_run(config, resume=True) as trained:
            assert trained == steps
        assert [path.name for path in edges.glob("*")] == left
        shutil.rmtree(edges, ignore_errors=True)


def test_a_configuration_of_the_user_in_the_run_folder_is_not_overwritten(folder: Path) -> None:
    config = configuration(folder)
    mine = config.run / "config.yaml"
    mine.write_text("# my own\n")
    with pytest.raises(ConfigError, match="did not write"), open_run(config, resume=False):
        pass
    assert mine.read_text() == "# my own\n"
    mine.unlink()
    for changed in (config, configuration(folder, train={"steps": 7})):
        with open_run(changed, resume=False):
            assert load(mine) == changed


def test_a_run_without_a_checkpoint_reads_its_stream_from_the_start(folder: Path) -> None:
    config = configuration(folder)
    spool = config.run / SPOOL
    for left in (["lock"], ["000000000.jsonl", "lock", "state.json"]):
        spool.mkdir(exist_ok=True)
        for name in ("000000000.jsonl", "lock", "state.json"):
            (spool / name).touch()
        with open_run(config, resume=True):
            assert sorted(path.name for path in spool.iterdir()) == left
        train(config)
