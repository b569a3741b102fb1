"""Samples of the files of runs in a loop of one's own: workers, sizes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fork_server import SERVER
from PIL import Image
from support import one_thread
from torch.utils.data import DataLoader

from flowtrain.config.checks import ConfigError
from flowtrain.data import DataError, PackedLoader, VlmCollator, VlmSamples
from flowtrain.data.digits import write_digits
from flowtrain.models.tiny import SMALLEST

COUNT = 12


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    write_digits(folder, train=COUNT, heldout=0, sizes=SMALLEST, text_only=0.2, multi_image=0.3)
    return folder


def assert_equal(item: dict[str, Any], other: dict[str, Any]) -> None:
    assert item.keys() == other.keys()
    for name, tensor in item.items():
        assert torch.equal(tensor, other[name]), name


# A spawned worker would import for seconds what it gets in the same way from a fork server.
@pytest.mark.parametrize("start", ["fork", SERVER], ids=["fork", "fork server"])
def test_workers_of_a_loader_read_the_same_samples(digits: Path, start: Any) -> None:
    samples = VlmSamples(digits / "model", digits / "train.jsonl")
    here = [samples[index] for index in range(COUNT)]
    assert_equal(samples[-1], here[-1])
    loader = DataLoader(
        samples, batch_size=5, collate_fn=list, num_workers=2, multiprocessing_context=start
    )
    for item, other in zip((item for batch in loader for item in batch), here, strict=True):
        assert_equal(item, other)


def test_a_packed_loader_makes_rows_of_them(digits: Path) -> None:
    samples = VlmSamples(digits / "model", {"path": digits / "train.jsonl"})
    collate = VlmCollator(digits / "model")
    options: dict[str, Any] = {"max_tokens": 256, "targets": "labels", "collate_fn": collate}
    with one_thread(), PackedLoader(samples, 4, **options) as loader:
        rows = list(loader)
    assert sorted(n for _, microbatch in rows for n in microbatch.samples) == list(range(COUNT))
    for row, microbatch in rows:
        alone = collate([samples[index] for index in microbatch.samples])
        assert row.pop("use_cache") is alone.pop("use_cache") is False
        assert_equal(row, alone)


def test_sizes_are_read_without_decoding_images(digits: Path, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "cut.png")
    content = (tmp_path / "cut.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(content[: len(content) // 2])
    samples = VlmSamples(digits / "model", write(tmp_path, "cut.png"))
    with (
        one_thread(),
        PackedLoader(
            samples, 1, max_tokens=256, targets="labels", collate_fn=VlmCollator(digits / "model")
        ) as loader,
        pytest.raises(DataError, match=r"a\.jsonl:1: image .*cut\.png"),
    ):
        next(iter(loader))


def write(folder: Path, image: str) -> Path:
    turns = [{"role": "user", "content": "<image>?"}, {"role": "assistant", "content": "1"}]
    path = folder / "a.jsonl"
    path.write_text(json.dumps({"messages": turns, "images": [image]}) + "\n")
    return path


def test_a_bad_image_names_its_line_as_data_check_does(digits: Path, tmp_path: Path) -> None:
    samples = VlmSamples(digits / "model", write(tmp_path, "gone.png"))
    with pytest.raises(DataError, match=r"a\.jsonl:1: image .*gone\.png: there is no such file"):
        samples[0]
    with pytest.raises(IndexError, match=r"a\.jsonl: sample 1 of 1"):
        samples[1]


def test_what_a_data_set_of_all_samples_cannot_do_is_refused(digits: Path) -> None:
    path = digits / "train.jsonl"
    for fields, message in (
        ({"path": path, "bad_image": "skip"}, "bad_image=skip, .* has every sample, and whole"),
        ({"path": path, "oversize": "drop"}, r'oversize=drop: .*PackedLoader\(oversize="drop"\)'),
        ({"sources": [{"path": path, "weight": 2}]}, "weight=2: VlmSamples has each sample once"),
    ):
        with pytest.raises(DataError, match=message):
            VlmSamples(digits / "model", fields)
    with pytest.raises(ConfigError, match="data: paht: there is no such field"):
        VlmSamples(digits / "model", {"paht": path})
