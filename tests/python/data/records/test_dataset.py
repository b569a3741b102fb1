"""Several data sets read as one."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from flowtrain.config import ConfigError
from flowtrain.config.data import DataConfig
from flowtrain.config.sources import SourceConfig
from flowtrain.data import DataError
from flowtrain.data.records import Dataset, ParquetRecords, jsonl, parquet
from flowtrain.data.samples import SampleReader
from flowtrain.models.tiny import write_tiny_model


def row(text: str, image: str = "a.png") -> dict[str, Any]:
    turns = [{"role": "user", "content": "<image>?"}, {"role": "assistant", "content": text}]
    return {"messages": turns, "images": [image]}


def write(path: Path, rows: list[dict[str, Any]], *, width: int = 8) -> Path:
    path.parent.mkdir(exist_ok=True)
    Image.new("RGB", (width, 8)).save(path.parent / "a.png")
    if path.suffix == ".parquet":
        arrow, module = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        module.write_table(arrow.Table.from_pylist(rows), path, row_group_size=1)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def mixed(*paths: Path, **fields: Any) -> DataConfig:
    return DataConfig(sources=tuple(SourceConfig(path=path) for path in paths), **fields)


def test_samples_of_every_format_are_numbered_through_and_images_lie_beside_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_model(tmp_path / "model")
    one = write(tmp_path / "one" / "a.jsonl", [row("1"), row("2")], width=8)
    two = write(tmp_path / "two" / "a.parquet", [row("3")], width=16)
    three = write(tmp_path / "three" / "a.json", [row("4"), row("5")], width=24)
    (tmp_path / "mixed_rows.py").write_text(f"def make(): return [{row('6')!r}]")
    monkeypatch.syspath_prepend(tmp_path)
    data = DataConfig(
        sources=(
            *mixed(one, two, three).sources,
            SourceConfig(dataset="mixed_rows:make", image_root=tmp_path / "two"),
        )
    )
    dataset = Dataset(data)
    assert [dataset.record(s)["messages"][1]["content"] for s in range(6)] == [*"123456"]
    assert [(dataset.where(s), dataset.line(s)) for s in (1, 2, 4, 5)] == [
        (f"{one}:2", 2),
        (f"{two}: row 0", None),
        (f"{three}: row 1", None),
        ("data.dataset=mixed_rows:make: item 0", None),
    ]
    reader = SampleReader(tmp_path / "model", data, 4096)
    assert [reader.meta(s).grids[0][2] for s in range(6)] == [2, 2, 4, 6, 6, 4]
    for sample in (-1, 6):
        with pytest.raises(DataError, match=f"data.sources: sample {sample} does not exist.* 5"):
            dataset.record(sample)


def test_one_root_of_images_holds_for_all_sources_without_their_own(tmp_path: Path) -> None:
    data = DataConfig(
        image_root=tmp_path,
        sources=(
            SourceConfig(path=write(tmp_path / "one" / "a.jsonl", [row("1")])),
            SourceConfig(path=write(tmp_path / "b.jsonl", [row("2")]), image_root=tmp_path / "x"),
        ),
    )
    assert [Dataset(data).root(sample) for sample in (0, 1)] == [tmp_path, tmp_path / "x"]


def test_a_source_that_changes_during_the_run_is_named(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, [row("1")]) for name in ("a.jsonl", "b.jsonl")]
    data = mixed(*paths)
    dataset = Dataset(data)
    os.utime(paths[1], (1, 1))
    assert dataset.record(0)
    for read in (
        lambda: dataset.record(1),
        dataset.check_state,
        lambda: Dataset(data, dataset.state),
    ):
        with pytest.raises(DataError, match=r"b\.jsonl: the data changed during the run"):
            read()


def test_lines_of_each_file_are_found_once_in_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write(tmp_path / name, [row("1")]) for name in ("a.jsonl", "b.jsonl")]
    Dataset(mixed(*paths))
    monkeypatch.setattr(jsonl, "_find_lines", None)
    assert len(Dataset(mixed(*paths))) == 2


def test_a_pattern_is_one_data_set_of_the_files_in_the_order_of_their_names(
    tmp_path: Path,
) -> None:
    for number in (10, 9, 2):
        write(tmp_path / "shards" / f"part-{number:03}.jsonl", [row(str(number)), row("0")])
    pattern = tmp_path / "shards" / "part-*.jsonl"
    other = write(tmp_path / "other.json", [row("7")])
    dataset = Dataset(mixed(pattern, other))
    assert (dataset.names, dataset.sizes) == ([str(pattern), str(other)], [6, 1])
    texts = [dataset.record(n)["messages"][1]["content"] for n in range(7)]
    assert texts == ["2", "0", "9", "0", "10", "0", "7"]
    assert dataset.where(3).endswith("part-009.jsonl:2")
    assert dataset.root(5) == tmp_path / "shards"
    assert len(dataset.contents()) == 2
    assert len(Dataset(mixed(pattern, other), dataset.state)) == 7
    write(tmp_path / "shards" / "part-011.jsonl", [row("11")])
    with pytest.raises(DataError, match="5 files, but 4 when the run started"):
        Dataset(mixed(pattern, other), dataset.state)
    with pytest.raises(DataError, match=r"gone-\*\.jsonl: no file has such a name"):
        Dataset(DataConfig(path=tmp_path / "gone-*.jsonl"))


def test_parquet_files_share_the_limit_for_decoded_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(str(number)) for number in range(3)]
    paths = [write(tmp_path / f"{number}.parquet", rows) for number in range(3)]
    dataset = Dataset(mixed(*paths))
    first = dataset.parts[0]
    assert isinstance(first, ParquetRecords)
    monkeypatch.setattr(parquet, "_CACHE_BYTES", 2 * first._table(0, "").nbytes)
    for sample in (0, 3, 6, 1, 4, 7, 0, 8):
        assert dataset.record(sample) == rows[sample % 3]
        assert len(first._decoded) <= 3


def test_more_files_than_may_be_open_are_an_error_that_names_the_limit(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{number}.jsonl", [row("1")]) for number in range(50)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(lowest := os.dup(0))  # The lowest free number.
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 20, limits[1]))
        with pytest.raises(DataError, match=r"\.jsonl: cannot be opened \(Too many .*`ulimit -n`"):
            Dataset(mixed(*paths))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sources": ({"weight": 0},)}, r"path=None, dataset=None: give exactly one"),
        ({"sources": ({"path": "a", "dataset": "b:c"},)}, "give exactly one of the two in each"),
        ({"sources": ({"path": "a", "weight": 0.0},)}, r"a: weight=0: it must be greater than 0"),
        ({"sources": ({"path": "a", "weight": 1e7},)}, r"a: weight=1e\+07: .* at most 1000000"),
        ({"sources": ({"path": "a", "weight": float("nan")},)}, r"a: weight=nan: it must be"),
        ({"sources": ({"dataset": "b"},)}, r"data\.sources: dataset=b: write package\.module:make"),
        ({"sources": ({"path": "a"}, {"path": "a"})}, r"a is given twice; give it once, with the"),
        ({"sources": ({"path": "a"},), "path": "b"}, r"data\.sources=\[a\]: give exactly one of"),
    ],
)
def test_sources_that_cannot_be_meant_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        given = {**fields, "sources": tuple(SourceConfig(**each) for each in fields["sources"])}
        DataConfig(**given)
