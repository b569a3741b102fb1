"""One data set in every format: the same samples, and the place of a bad one."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flowtrain.config import ConfigError, RunConfig
from flowtrain.config.data import DataConfig
from flowtrain.config.model import ModelConfig
from flowtrain.config.train import TrainConfig
from flowtrain.data import DataError
from flowtrain.data.check import check_file
from flowtrain.data.records import FORMATS, Dataset, base, dataset, json_text, jsonl
from flowtrain.data.samples import SampleReader
from flowtrain.data.workers import WorkerPool
from flowtrain.models.tiny import write_tiny_model

ROWS: list[dict[str, Any]] = [
    {
        "messages": [
            {"role": "user", "content": f"<image>Read {n}."},
            {"role": "assistant", "content": str(n)},
        ],
        "images": ["a.png"],
    }
    for n in range(5)
]
BAD = {"messages": [{"role": "user", "content": "Why?"}], "images": []}

KINDS = ["jsonl", "json", "parquet", "saved", "imported"]
EMBEDDED = [*KINDS, "streamed"]
WHERE = {"jsonl": ":6", "imported": ": item 5"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder)
    return folder


def write(kind: str, folder: Path, rows: list[dict[str, Any]]) -> DataConfig:
    """A file or folder of a format with these rows."""
    path = folder / (kind if kind == "saved" else f"data.{kind}")
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "json":
        path.write_text(json.dumps(rows, indent=2))
    elif kind == "parquet":
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(rows), path, row_group_size=2)
    else:
        pytest.importorskip("datasets").Dataset.from_list(rows).save_to_disk(path)
    return DataConfig(path=path)


def data_of(kind: str, folder: Path) -> DataConfig:
    """The rows and their image in a format, below a folder from which Python imports."""
    folder.mkdir(exist_ok=True)
    rows = [*ROWS, BAD]
    Image.new("RGB", (16, 8)).save(folder / "a.png")
    if kind == "imported":
        (folder / "made_rows.py").write_text(f"def make(): return {rows!r}")
        return DataConfig(dataset="made_rows:make", image_root=folder)
    return write(kind, folder, rows)


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_samples_of_jsonl_and_names_a_bad_one(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    truth = SampleReader(model, data_of("jsonl", tmp_path / "truth"), 4096)
    data = data_of(kind, tmp_path)
    read = SampleReader(model, data, 4096)
    assert len(read) == len(truth) == 6
    for sample in range(5):
        (meta, text), (true_meta, true_text) = (
            each.meta_and_text(sample) for each in (read, truth)
        )
        assert meta == true_meta
        np.testing.assert_array_equal(text, true_text)
    found = check_file(
        RunConfig(
            run=tmp_path / "run",
            model=ModelConfig(config=model),
            data=data,
            train=TrainConfig(steps=1),
        ),
        workers=1,
        pixels=True,
    )
    [bad] = found.bad
    assert (found.samples, bad.sample, bad.line) == (6, 5, 6 if kind == "jsonl" else None)
    assert bad.reason.startswith(f"{data.name}{WHERE.get(kind, ': row 5')}: no targets")


def embedded(kind: str, folder: Path, image: Path) -> DataConfig:
    """The rows with the image itself, as people have it in a format."""
    content = image.read_bytes()
    if kind == "saved":
        # save_to_disk puts the files of images into its folder.
        datasets = pytest.importorskip("datasets")
        made = datasets.Dataset.from_list([{**row, "images": [str(image)]} for row in ROWS])
        made.cast_column("images", datasets.List(datasets.Image())).save_to_disk(folder / kind)
        image.unlink()
        return DataConfig(path=folder / kind)
    if kind in ("imported", "streamed"):
        returned = "iter(rows)" if kind == "streamed" else "rows"
        (folder / f"{kind}_images.py").write_text(
            "import io\nfrom PIL import Image\n"
            f"def make():\n    image = Image.open(io.BytesIO({content!r}))\n"
            f"    rows = [{{**row, 'images': [image]}} for row in {ROWS!r}]\n    return {returned}"
        )
        return DataConfig(dataset=f"{kind}_images:make")
    address = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    held = content if kind == "parquet" else address
    return write(kind, folder, [{**row, "images": [held]} for row in ROWS])


@pytest.mark.parametrize("kind", EMBEDDED)
def test_every_format_may_hold_the_images_themselves(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    truth = SampleReader(model, data_of("jsonl", tmp_path / "truth"), 4096)
    noise = np.random.default_rng(0).integers(0, 256, (8, 16, 3), dtype=np.uint8)
    for image in (tmp_path / "a.png", tmp_path / "truth" / "a.png"):
        Image.fromarray(noise).save(image)
    read = SampleReader(model, embedded(kind, tmp_path, tmp_path / "a.png"), 4096)
    for sample in range(5):
        meta, true_meta = read.meta(sample), truth.meta(sample)
        assert meta == true_meta
        ours, theirs = (each.pixels(sample, 0, meta.grids[0]).values for each in (read, truth))
        assert ours is not None and ours.any()
        np.testing.assert_array_equal(ours, theirs)


def test_relative_images_of_a_python_data_set_need_a_root(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{**ROWS[0], "images": [image]} for image in ("a.png", tmp_path / "a.png")]
    Image.new("RGB", (16, 8)).save(tmp_path / "a.png")
    (tmp_path / "rootless_rows.py").write_text(
        f"from pathlib import Path, PosixPath\ndef make(): return {rows!r}"
    )
    monkeypatch.syspath_prepend(tmp_path)
    read = SampleReader(model, DataConfig(dataset="rootless_rows:make"), 4096)
    with pytest.raises(DataError, match=r"item 0: image 'a\.png' is a relative path.*image_root"):
        read.meta(0)
    assert read.meta(1).grids == ((1, 2, 4),)


def test_of_a_large_data_set_blocks_are_hashed_and_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "_HASHED_BYTES", 600)
    monkeypatch.setattr(base, "_BLOCK_BYTES", 100)
    path = tmp_path / "a.jsonl"

    def contents(lines: int, changed: int | None = None) -> list[str]:
        texts = ['{"a": "' + "b" * 38 + '"}' + "\n"] * lines  # 48 bytes each.
        if changed is not None:
            texts[changed] = texts[changed].replace("b", "c")
        path.write_text("".join(texts))
        return Dataset(DataConfig(path=path)).contents()

    whole = contents(12)
    assert all(contents(12, changed) != whole for changed in range(12))
    # Of 1,248 bytes: those from 0, 300, 600, 900 and 1,148 on.
    some = contents(26)
    seen = {changed for changed in range(26) if contents(26, changed) != some}
    assert {0, 7, 13, 19, 25} <= seen and 4 not in seen
    assert contents(27) != some


def test_a_path_of_no_known_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("a,b")
    known = ", ".join(rf"\{suffix}" for suffix in FORMATS)
    with pytest.raises(
        DataError, match=rf"the suffix '\.csv' names no known .* one of {known}, or"
    ):
        Dataset(DataConfig(path=tmp_path / "data.csv"))
    with pytest.raises(DataError, match="there is no such file or folder"):
        Dataset(DataConfig(path=tmp_path / "gone"))


def test_exactly_one_data_set_must_be_given() -> None:
    for given in ({}, {"path": Path("a.jsonl"), "dataset": "a:b"}):
        with pytest.raises(ConfigError, match=r"data\.path=.*data\.dataset=.*: give exactly one"):
            DataConfig(**given)
    for spec in ("make", "a:", ":b", "a/b:c", "a.b:c:d"):
        with pytest.raises(ConfigError, match=f"data.dataset={spec}: write package.module:make"):
            DataConfig(dataset=spec)


def test_a_forked_reader_uses_the_index_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_of("jsonl", tmp_path)
    state = Dataset(data).state
    monkeypatch.setattr(jsonl, "_find_lines", None)
    with WorkerPool(lambda: Dataset(data, state), 1, fork=True) as pool:
        assert pool.submit("record", 2).result(60) == ROWS[2]
    json_text._indexes.clear()
    with pytest.raises(TypeError):
        Dataset(data, state)
