"""What a run on a stream refuses, and what it reads of the stream before its ranks start."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import run_tree

from flowtrain.config import ConfigError, from_dict
from flowtrain.data import DataError
from flowtrain.train.launch.layout import with_layout
from flowtrain.train.launch.run import train

FOLDER = Path()
READ: list[int] = []


class Rows:
    pause_s = 0.0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number, line in enumerate(FOLDER.joinpath("train.jsonl").read_text().splitlines()):
            READ.append(number)
            time.sleep(self.pause_s)
            yield json.loads(line)


class Hangs(Rows):
    pause_s = 10.0


@pytest.fixture(autouse=True)
def _folder(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.FOLDER", data)


def tree(folder: Path, data: Path, /, **sections: dict[str, Any]) -> dict[str, Any]:
    stream = {"path": None, "dataset": f"{__name__}:Rows", "image_root": str(data)}
    sections["data"] = {**stream, "shuffle": False, **sections.get("data", {})}
    return run_tree(folder / "run", data, **sections)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"data": {"shuffle": True}},
            r"data\.shuffle=true: .*set data\.shuffle=false.*buffer_size",
        ),
        (
            {"train": {"steps": 0, "epochs": 2}},
            r"train\.epochs=2: .* is a stream.*give train\.steps",
        ),
        (
            {"eval": {"dataset": f"{__name__}:Rows", "every": 1}},
            r"eval\.dataset=.*: it is a stream",
        ),
    ],
)
def test_what_needs_samples_by_number_is_refused(
    sections: dict[str, dict[str, Any]], message: str, tmp_path: Path, data: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        train(from_dict(tree(tmp_path, data, **sections)), run_ranks=pytest.fail)


def test_a_layout_is_chosen_by_the_first_records_of_a_stream(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    READ.clear()
    config = from_dict(tree(tmp_path, data, flow={"layout": "auto"}, train={"global_batch": 4}))
    with_layout(config, resume=False)
    assert "estimated" in capsys.readouterr().err
    assert 4 <= len(READ) <= 16
    assert list(range(len(READ))) == READ


def test_a_stream_that_hangs_before_the_run_is_named(tmp_path: Path, data: Path) -> None:
    hangs = {"dataset": f"{__name__}:Hangs"}
    flow = {"layout": "auto", "timeout_s": 0.2}
    config = from_dict(tree(tmp_path, data, data=hangs, flow=flow))
    with pytest.raises(
        DataError, match=r"Hangs: item 0: being read for more than flow\.timeout_s=0"
    ):
        with_layout(config, resume=False)
