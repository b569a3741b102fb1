from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from flowtrain.data import DataError
from flowtrain.data.records import base
from flowtrain.data.records.json_array import JsonArrayFile


def values(source: random.Random, depth: int = 0) -> Any:
    if depth == 3 or source.random() < 0.5:
        return "".join(source.choice('a"\\[]{},\u00e9\n') for _ in range(source.randrange(8)))
    if source.random() < 0.5:
        return [values(source, depth + 1) for _ in range(source.randrange(3))]
    return {str(n): values(source, depth + 1) for n in range(source.randrange(3))}


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 7, 1 << 22])
def test_the_elements_are_those_that_json_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    monkeypatch.setattr(base, "_CHUNK_BYTES", chunk_bytes)
    source = random.Random(chunk_bytes)
    for number in range(60):
        records = [{"value": values(source)} for _ in range(1 + source.randrange(4))]
        text = json.dumps(records, indent=source.choice([None, 1]), ensure_ascii=number % 2 == 0)
        path = tmp_path / f"{number}.json"
        path.write_text(" \n" * (number % 3) + text + "\n" * (number % 2))
        file = JsonArrayFile(path)
        assert [file.record(sample) for sample in range(len(file))] == records


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"no samples; write an array of objects"),
        (" [ \n ] ", r"no samples; write an array of objects"),
        (
            '{"a": 1}\n{"a": 2}\n',
            r"starts with '\{\"a\": 1\}.*; name a file of one object .*\.jsonl",
        ),
        ('[{"a": 1}, {"a": [2}', "the array does not end: a quote or bracket is missing"),
        ('[{"a": 1}, {"a": "]}]', "the array does not end: a quote or bracket is missing"),
        ('[{"a": 1}]\n[{"a": 2}]', r"after the array, '\[.*' follows; write a single array"),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [1, 1 << 22])
def test_a_file_that_is_not_one_array_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str, chunk_bytes: int
) -> None:
    monkeypatch.setattr(base, "_CHUNK_BYTES", chunk_bytes)
    path = tmp_path / "data.json"
    path.write_text(text)
    with pytest.raises(DataError, match=rf"data\.json: .*{message}"):
        JsonArrayFile(path)


def test_the_error_of_a_bad_element_names_its_row(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text('[{"a": 1}, [2], {"a": 1, "a": 2}, ]')
    file = JsonArrayFile(path)
    for row, message in [
        (1, "the row is a JSON list; it must be an object"),
        (2, r"not JSON \('a' is given twice\); fix or drop the row"),
        (3, r"not JSON \(Expecting value.*\); fix or drop the row"),
    ]:
        with pytest.raises(DataError, match=rf"data\.json: row {row}: {message}"):
            file.record(row)
