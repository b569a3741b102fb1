from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from support import run_tree

from flowtrain.config import RunConfig, dump, from_dict
from flowtrain.config.layout import RankLayout
from flowtrain.train.launch.calibration import _cgroup_cores
from flowtrain.train.launch.layout import with_layout


def automatic(folder: Path, data: Path) -> RunConfig:
    return from_dict(run_tree(folder, data, flow={"layout": "auto"}))


def test_a_layout_is_chosen_and_the_line_says_why(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = with_layout(automatic(tmp_path / "run", data), resume=False).flow.chosen
    said = capsys.readouterr().err
    assert said.startswith(f"flowtrain: layout {chosen}: estimated ")
    assert "; next best " in said
    assert len(chosen.labels) <= 8  # train.global_batch


def test_a_resumed_run_keeps_the_layout_in_its_folder(tmp_path: Path, data: Path) -> None:
    config = automatic(tmp_path / "run", data)
    layout = RankLayout.decoupled(3, 1)
    before = dataclasses.replace(config, flow=config.flow.with_layout(layout))
    config.run.mkdir()
    config.run.joinpath("config.yaml").write_text(dump(before))
    assert with_layout(config, resume=True).flow.chosen == layout
    assert with_layout(before, resume=False).flow.chosen == layout


def test_samples_that_cannot_be_used_are_left_to_the_ranks(tmp_path: Path, data: Path) -> None:
    config = automatic(tmp_path / "run", data)
    short = dataclasses.replace(config.train, microbatch_tokens=1)
    chosen = with_layout(dataclasses.replace(config, train=short), resume=False).flow.chosen
    assert chosen == RankLayout.colocated_on(1)


@pytest.mark.parametrize(("quota", "cores"), [("150000 100000", 2), ("max 100000", 1 << 20)])
def test_the_quota_of_a_cgroup_limits_the_cores(quota: str, cores: int, tmp_path: Path) -> None:
    tmp_path.joinpath("cpu.max").write_text(f"{quota}\n")
    assert _cgroup_cores(tmp_path / "cpu.max") == cores
