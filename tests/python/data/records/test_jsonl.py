from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from flowtrain.data import DataError
from flowtrain.data.records import base, jsonl
from flowtrain.data.records.jsonl import JsonlFile


@pytest.mark.parametrize("chunk_bytes", [1, 5, 1 << 26])
def test_blank_lines_count_as_lines_but_not_as_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    monkeypatch.setattr(base, "_CHUNK_BYTES", chunk_bytes)
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"a": 0}\n\n  \t\r\n  {"a": 1}\r\n{"a": 2}\n[3]\n\n')
    file = JsonlFile(path)
    assert len(file) == 4
    assert [file.record(sample) for sample in range(3)] == [{"a": 0}, {"a": 1}, {"a": 2}]
    assert [file.where(sample) for sample in range(4)] == [f"{path}:{n}" for n in (1, 4, 5, 6)]
    with pytest.raises(DataError, match=r"data\.jsonl:6: the line is a JSON list"):
        file.record(3)


def test_a_repeated_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"a": 1}\n{"a": [{"b": 1, "c": 1, "b": 2}]}\n')
    with pytest.raises(DataError, match=r"data\.jsonl:2: not JSON \('b' is given twice\)"):
        JsonlFile(path).record(1)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_file_in_another_encoding_is_refused(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes('{"a": 1}\n'.encode(encoding))
    with pytest.raises(DataError, match=r"data\.jsonl: the file is not in UTF-8.*iconv"):
        JsonlFile(path)


def test_a_pointer_of_git_lfs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n")
    with pytest.raises(DataError, match=r"data\.jsonl: a Git LFS pointer .*git lfs pull"):
        JsonlFile(path)


@pytest.mark.parametrize("text", ["", "\n", " \n\n "])
def test_a_file_without_a_sample_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=r"data\.jsonl: no samples"):
        JsonlFile(path)


def test_a_path_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # Without a writer, so that opening it would not return.
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(DataError, match=rf"{path}: not a regular file"):
            JsonlFile(path)


def test_a_file_that_replaces_the_open_one_is_not_read(tmp_path: Path) -> None:
    path, other = tmp_path / "data.jsonl", tmp_path / "other.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    file = JsonlFile(path)
    other.write_text('{"a": 2}\n{"a": 1}\n')
    other.replace(path)
    assert [file.record(sample) for sample in range(2)] == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("text", ['{"a": 2}\n{"a": 1}\n', '{"a": 1}\n{"a": 2}\n{}', ""])
def test_a_file_that_is_changed_while_it_is_read_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    os.utime(path, (1, 1))
    file = JsonlFile(path)
    assert file.record(1) == {"a": 2}
    path.write_text(text)
    with pytest.raises(DataError, match=r"data\.jsonl: the data changed during the run"):
        file.record(1)


def test_a_file_that_is_truncated_while_its_lines_are_found_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"a": 1}\n' * 10_000)
    find_lines = jsonl._find_lines

    def cut_short(file: Any) -> Any:
        os.truncate(path, 9)
        return find_lines(file)

    monkeypatch.setattr(jsonl, "_find_lines", cut_short)
    with pytest.raises(DataError, match=r"data\.jsonl: the data changed during the run"):
        JsonlFile(path)


@pytest.mark.parametrize("sample", [-1, 1])
def test_a_sample_number_out_of_range_is_an_error_that_names_it(
    tmp_path: Path, sample: int
) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text("{}")
    with pytest.raises(DataError, match=rf"sample {sample} does not exist; the last one is 0"):
        JsonlFile(path).record(sample)
