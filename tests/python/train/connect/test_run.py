"""A loop's samples are read by its encoder ranks, whatever the loop gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from flowtrain.config.checks import ConfigError
from flowtrain.data import VlmSamples
from flowtrain.data.errors import DataError
from flowtrain.train.connect.run import run_of


def run(samples: Any, data: Path, job: Path, **options: Any) -> Any:
    sections = {
        "run": str(job),
        "model": {"path": str(data / "model")},
        "flow": {"encoder_ranks": 1, "backbone_ranks": 1},
        "train": {"global_batch": 2, "microbatch_tokens": 160},
    }
    return run_of(sections, samples, steps=None, **options)


def test_records_in_memory_become_a_file_with_the_same_samples(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data)
    expected = VlmSamples(data / "model", data / "train.jsonl")
    records = [json.loads(line) for line in (data / "train.jsonl").read_text().splitlines()]
    paths = [record for record in records if record.get("images")]
    for record in paths[::2]:
        record["images"] = [Image.open(path) for path in record["images"]]
    config = run(records, data, tmp_path / "job")
    assert config.train.steps == len(records) / 2
    monkeypatch.chdir("/")
    found = VlmSamples(data / "model", config.data)
    for number in range(len(records)):
        for name, tensor in expected[number].items():
            assert torch.equal(found[number][name], tensor), (number, name)
    # A loop that is resumed has the same file, and no other is left.
    monkeypatch.chdir(data)
    assert run(records, data, tmp_path / "job").data == config.data
    assert [file.name for file in (tmp_path / "job").iterdir()] == [config.data.path.name]


def test_samples_of_plain_loops_are_those_of_their_section_in_their_order(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data)
    samples = VlmSamples("model", {"path": "train.jsonl", "max_pixels": 4096})
    config = run(samples, data, tmp_path)
    assert config.data.path == data / "train.jsonl"
    assert config.data.max_pixels == 4096 and not config.data.shuffle


def test_held_out_samples_are_those_that_are_given(data: Path, tmp_path: Path) -> None:
    train, held_out = data / "train.jsonl", data / "heldout.jsonl"
    config = run(train, data, tmp_path, held_out=VlmSamples(data / "model", held_out))
    assert config.held_out.path == held_out and config.eval.every == 0
    with pytest.raises(ConfigError, match=r"^evaluate_every=5: .*; give held_out"):
        run(train, data, tmp_path, evaluate_every=5)
    sources = {"sources": [{"path": str(train)}, {"path": str(held_out)}]}
    with pytest.raises(ConfigError, match=r"^held_out: samples of several sources"):
        run(train, data, tmp_path, held_out=sources)


class _Rows(torch.utils.data.Dataset[Any]):
    """A data set of torch."""


_Rows.__module__ = "my_data"


@pytest.mark.parametrize(
    ("samples", "way_out"),
    [
        (_Rows(), r"my_data._Rows is an object of this process, .*package.module:make"),
        (
            type("Dataset", (), {"__module__": "datasets.arrow_dataset"})(),
            r"datasets.arrow_dataset.Dataset .* its save_to_disk, and give that folder",
        ),
        ([{"messages": [], "images": [object()]}], r"record 0: .* which JSON cannot hold"),
        ([], "no records"),
    ],
)
def test_what_encoder_ranks_cannot_read_is_refused(
    samples: Any, way_out: str, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=way_out):
        run(samples, data, tmp_path)
    assert not list(tmp_path.iterdir())
