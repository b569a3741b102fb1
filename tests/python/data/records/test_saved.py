from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from flowtrain.data import DataError
from flowtrain.data.records import saved
from flowtrain.data.records.saved import SavedDataset


def datasets() -> Any:
    return pytest.importorskip("datasets")


def test_images_are_not_decoded(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    rows = {"image": [str(tmp_path / "a.png")], "messages": [[{"role": "user", "content": "a"}]]}
    made = datasets().Dataset.from_dict(rows).cast_column("image", datasets().Image())
    made.save_to_disk(tmp_path / "data")
    record = SavedDataset(tmp_path / "data").record(0)
    assert set(record["image"]) == {"bytes", "path"}
    assert record["messages"] == rows["messages"][0]


def test_the_splits_of_a_dataset_dict_are_named(tmp_path: Path) -> None:
    split = datasets().Dataset.from_dict({"a": [1]})
    datasets().DatasetDict(train=split, test=split).save_to_disk(tmp_path / "data")
    with pytest.raises(DataError, match=r"has the splits test, train; choose one, such as "):
        SavedDataset(tmp_path / "data")
    assert SavedDataset(tmp_path / "data" / "train").record(0) == {"a": 1}


def test_a_folder_that_moves_has_the_same_contents_and_one_that_changes_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved, "_CHECKED_EVERY_S", 0.0)
    datasets().Dataset.from_dict({"a": [1, 2]}).save_to_disk(tmp_path / "data")
    contents = SavedDataset(tmp_path / "data").contents()
    (tmp_path / "data").rename(tmp_path / "moved")
    moved = SavedDataset(tmp_path / "moved")
    assert moved.contents() == contents
    [arrow] = (tmp_path / "moved").glob("*.arrow")
    os.utime(arrow, (1, 1))
    with pytest.raises(DataError, match="moved: the data changed during the run"):
        moved.record(1)
    datasets().Dataset.from_dict({"a": [1, 3]}).save_to_disk(tmp_path / "other")
    assert SavedDataset(tmp_path / "other").contents() != contents


def test_a_folder_of_something_else_and_a_missing_package_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=r"the folder has no dataset_info\.json and state\.json"):
        SavedDataset(tmp_path)
    for name in ("dataset_info.json", "state.json"):
        (tmp_path / name).write_text("{}")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"read with datasets.*pip install datasets"):
        SavedDataset(tmp_path)
