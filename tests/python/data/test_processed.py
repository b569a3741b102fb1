"""Samples that are outputs of the model's processor, read as those of a file are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from parity import add_videos
from reference_loop import Samples

from flowtrain.config.data import DataConfig
from flowtrain.data import DataError, VlmSamples
from flowtrain.data.digits import write_digits
from flowtrain.data.pixel_maker import PixelMaker
from flowtrain.data.samples import SampleReader
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import SMALLEST, TINY
from flowtrain.models.videos import FAMILIES_WITH_VIDEO

COUNT = 8
NUMBERS = count()
Item = dict[str, Any]
Imported = Callable[[list[Any]], dict[str, Any]]


def write(folder: Path, family: str) -> Path:
    shares = {"text_only": 0.25, "multi_image": 0.5}
    write_digits(folder, train=COUNT, heldout=0, seed=3, sizes=SMALLEST, family=family, **shares)
    if family in FAMILIES_WITH_VIDEO:
        add_videos(folder / "train.jsonl")
    return folder


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Imported:
    """Makes a section `data` of items in memory."""

    def imported(items: list[Any]) -> dict[str, Any]:
        # A data set is made once for each name.
        name = f"processed_{next(NUMBERS)}"
        module = ModuleType(name)
        vars(module)["make"] = lambda: items
        monkeypatch.setitem(sys.modules, name, module)
        return {"dataset": f"{name}:make"}

    return imported


@pytest.mark.parametrize("family", TINY)
def test_they_are_the_samples_of_their_file(
    family: str, imported: Imported, tmp_path: Path
) -> None:
    model = write(tmp_path, family) / "model"
    of_processor = Samples(tmp_path / "train.jsonl", model)
    items = [of_processor[index] for index in range(COUNT)]
    data = imported(items)
    found = VlmSamples(model, data)
    for index, item in enumerate(items):
        for name, tensor in found[index].items():
            assert torch.equal(tensor, item[name]), name
    # As a run reads them, image by image, beside one that is read from its file.
    limit = 1 << 20
    readers = [
        SampleReader(model, DataConfig(**fields), limit)
        for fields in (data, {"path": tmp_path / "train.jsonl"})
    ]
    make = PixelMaker(family_for(model))
    for index in range(COUNT):
        pixels, texts = [], []
        for reader in readers:
            meta, text = reader.meta_and_text(index)
            assert (text == reader.text(index, meta.grids)).all()
            texts.append(text)
            read = [reader.pixels(index, n, grid) for n, grid in enumerate(meta.grids)]
            if read:
                made = make(read, meta.grids, dtype=torch.float32, device=torch.device("cpu"))
                pixels.append(made)
        # The processor of InternVL tells no videos from images.
        for name in ("id", "count", "is_target"):
            np.testing.assert_array_equal(texts[0][name], texts[1][name])
        assert torch.equal(*pixels) if pixels else not meta.grids


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Item]]:
    folder = write(tmp_path_factory.mktemp("qwen"), "qwen3_vl")
    samples = Samples(folder / "train.jsonl", folder / "model")
    return folder / "model", [samples[index] for index in range(COUNT)]


def changed(item: Item, name: str, change: Callable[[Any], Any]) -> Item:
    return {**item, name: change(item[name].clone())}


def with_large_token(row: torch.Tensor) -> torch.Tensor:
    row[0, 0] = 1 << 20
    return row


def test_a_sample_that_cannot_be_used_is_named(
    qwen: tuple[Path, list[Item]], imported: Imported
) -> None:
    model, items = qwen
    item = next(item for item in items if "pixel_values" in item)
    is_image = torch.zeros_like(item["labels"], dtype=torch.bool)
    is_image |= item["mm_token_type_ids"] == 1
    bad = [
        (changed(item, "labels", lambda row: row.roll(-1)), "not shifted, or -100"),
        (changed(item, "labels", lambda row: row.where(~is_image, item["input_ids"])), "images"),
        (changed(item, "image_grid_thw", lambda grids: grids * 2), "need"),
        (
            changed(item, "input_ids", lambda row: row.index_fill(1, torch.tensor([0]), 1 << 20)),
            "vocab_size=",
        ),
        ({name: item[name] for name in ("input_ids", "pixel_values")}, "no labels beside"),
    ]
    reader = SampleReader(model, DataConfig(**imported([each for each, _ in bad])), 1 << 20)
    for index, (_, message) in enumerate(bad):
        with pytest.raises(DataError, match=rf"make: item {index}: .*{message}"):
            reader.meta(index)


def test_a_sample_that_changes_or_is_too_long_is_refused(
    qwen: tuple[Path, list[Item]], imported: Imported
) -> None:
    model, items = qwen
    given = [item for item in items if "pixel_values" in item]
    data = imported(given)
    reader = SampleReader(model, DataConfig(**data), 1 << 20)
    meta, other = reader.meta(0), (1, 2, 2)
    assert other not in meta.grids
    with pytest.raises(DataError, match=r"item 0: .*\(1, 2, 2\).* were planned; the data set must"):
        reader.pixels(0, 0, other)
    with pytest.raises(DataError, match="were planned"):
        reader.text(0, [*meta.grids[:-1], other])
    reader = SampleReader(model, DataConfig(oversize="truncate", **data), 8)
    with pytest.raises(DataError, match=r"exceed train.microbatch_tokens=8.* not truncated"):
        reader.meta(0)
    assert SampleReader(model, DataConfig(oversize="drop", **data), 8).meta(0).fit == "dropped"


def test_half_precision_pixels_and_mappings_of_transformers_are_read(
    qwen: tuple[Path, list[Item]], imported: Imported
) -> None:
    from transformers import BatchFeature

    model, items = qwen
    item = next(item for item in items if "pixel_values" in item)
    half = BatchFeature(changed(item, "pixel_values", lambda pixels: pixels.bfloat16()))
    reader = SampleReader(model, DataConfig(**imported([half])), 1 << 20)
    [first, *_] = reader.meta(0).grids
    values = reader.pixels(0, 0, first).values
    assert values is not None and values.dtype == np.float32
    whole = item["pixel_values"][: len(values)]
    np.testing.assert_array_equal(values, whole.bfloat16().float().numpy())
