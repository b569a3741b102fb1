"""A file of a run's folder that cannot be used is named, with the cause and the way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowtrain.train.state.files import RunFileError, read_object

DAMAGES: dict[str, tuple[bytes | None, str]] = {
    "missing": (None, "there is no such file"),
    "empty": (b"", "it is empty"),
    "cut": (b'{"step": 3, "cur', "not JSON "),
    "no object": (b"[1]", "it holds no object"),
    "no text": (b"\xff\xfe{}", "not text "),
    "lacks a key": (b'{"step": 3}', "it lacks cursor"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_with_the_cause_and_the_way_out(
    damage: str, tmp_path: Path
) -> None:
    content, cause = DAMAGES[damage]
    path = tmp_path / "mark.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RunFileError, match=rf"^{path}: {cause}.*; do this$"):
        read_object(path, ["step", "cursor"], way_out="do this")


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFileError, match=rf"^{tmp_path}: it is a folder, .*; do this$"):
        read_object(tmp_path, [], way_out="do this")
