"""Samples equal what the processor of their model makes of them, for every family."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from clips import NTSC, write_clip
from PIL import Image
from plain_processor import processor_of, sample_of
from transformers.image_utils import load_image

from flowtrain.config.data import DataConfig
from flowtrain.data import DataError, VlmSamples
from flowtrain.data.pixel_maker import PixelMaker
from flowtrain.data.samples import SampleReader
from flowtrain.data.text import expand
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import SMALLEST, TINY, write_tiny_model
from flowtrain.models.videos import FAMILIES_WITH_VIDEO

PROMPT = "Read."


def write_images(folder: Path) -> dict[str, str]:
    """Write images that are easily read wrong; (width, height) is in their names."""
    draw = np.random.default_rng(0)

    def noise(width: int, height: int, channels: int = 3) -> Image.Image:
        return Image.fromarray(draw.integers(0, 256, (height, width, channels), dtype=np.uint8))

    turned = Image.Exif()
    turned[0x0112] = 6
    noise(40, 8).save(folder / "strip.png")
    noise(70, 33).save(folder / "large.png")
    noise(501, 37).save(folder / "wide.png")
    noise(30, 61).save(folder / "upright.jpg")
    noise(50, 20).save(folder / "turned.jpg", exif=turned)
    noise(24, 16, 4).save(folder / "alpha.png")
    noise(24, 16).convert("P").save(folder / "palette.gif")
    noise(24, 16).convert("L").save(folder / "grey.png")
    noise(24, 16).convert("1").save(folder / "bits.png")
    noise(24, 16).convert("CMYK").save(folder / "cmyk.jpg")
    noise(8, 8).save(folder / "tiny.png")
    noise(1, 1).save(folder / "pixel.png")
    noise(2000, 1).save(folder / "line.png")
    noise(1, 2000).save(folder / "column.png")
    return {path.stem: path.name for path in sorted(folder.glob("*.*"))}


def turns(*contents: str, system: str | None = None) -> list[dict[str, str]]:
    first = [] if system is None else [{"role": "system", "content": system}]
    roles = ("user", "assistant")
    return first + [{"role": roles[n % 2], "content": text} for n, text in enumerate(contents)]


def normalize_videos_otherwise(model: Path) -> None:
    """Give the video processor other means than the image processor has, if it has a file."""
    path = model / "video_preprocessor_config.json"
    if path.exists():
        path.write_text(json.dumps(json.loads(path.read_text()) | {"image_mean": [0.4, 0.5, 0.6]}))


def odd_inputs(images: dict[str, str]) -> dict[str, dict[str, Any]]:
    alone = {
        name: {"messages": turns(f"<image>{PROMPT}", "12"), "images": [file]}
        for name, file in images.items()
    }
    strip, large, turned = images["strip"], images["large"], images["turned"]
    return {
        **alone,
        "text": {"messages": turns("A question", "an answer")},
        "several turns": {
            "messages": turns("<image>Read.", "12", "Again?", "34"),
            "images": [strip],
        },
        "images in two turns": {
            "messages": turns("<image>Read.", "12", "<image>And this?", "34"),
            "images": [strip, large],
        },
        "several images in a turn": {
            "messages": turns("<image><image> and <image>?", "1"),
            "images": [strip, large, turned],
        },
        "system prompt": {
            "messages": turns("<image>Read.", "12", system="Be brief."),
            "images": [strip],
        },
        "special characters": {"messages": turns("tab\t, line\n\nlines, \u00e9 \u4e2d", " a b \n")},
    }


def videos(folder: Path) -> dict[str, dict[str, Any]]:
    """Samples with videos, which are sampled and scaled in different ways."""
    clips = {
        "ntsc": write_clip(folder / "ntsc.mp4", fps=NTSC, frames=41),
        "long": write_clip(folder / "long.avi", fps=25, frames=301, seed=1),
        "scaled": write_clip(folder / "scaled.mov", frames=23, height=18, width=36, seed=2),
        "two frames": write_clip(folder / "two.mp4", frames=2, seed=3),
        "odd number": write_clip(folder / "odd.mp4", frames=5, fps=2, seed=4),
        "a frame": write_clip(folder / "one.mp4", frames=1),
        "flat": write_clip(folder / "flat.mp4", height=2, width=402),
    }
    ask, again = f"<video>{PROMPT}", "<video>Compare it with <image>."
    ntsc, scaled = clips["ntsc"].name, clips["scaled"].name
    return {
        **{
            name: {"messages": turns(ask, "12"), "videos": [path.name]}
            for name, path in clips.items()
        },
        "in two turns": {
            "messages": turns(ask, "12", again, "34"),
            "videos": [ntsc, scaled],
            "images": ["strip.png"],
        },
        "behind an image": {
            "messages": turns("<image><video>?", "12", "<video>", "34", system="Be brief."),
            "videos": [scaled, ntsc],
            "images": ["large.png"],
        },
    }


def with_files(record: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """The turns as `apply_chat_template` takes them."""
    files = {
        "<image>": iter(record.get("images", [])),
        "<video>": iter(record.get("videos", [])),
    }
    messages = []
    for turn in record["messages"]:
        parts: list[dict[str, Any]] = []
        for piece in re.split("(<image>|<video>)", turn["content"]):
            if piece == "<image>":
                with Image.open(folder / next(files[piece])) as image:  # load_image leaves it open.
                    parts.append({"type": "image", "image": load_image(image)})
            elif piece == "<video>":
                parts.append({"type": "video", "video": str(folder / next(files[piece]))})
            elif piece:
                parts.append({"type": "text", "text": piece})
        messages.append({"role": turn["role"], "content": parts})
    return messages


def differences(
    read: SampleReader,
    samples: VlmSamples,
    make: PixelMaker,
    line: int,
    processor: Any,
    record: Any,
    root: Path,
) -> str:
    """How a sample differs from the processor's, or an empty text."""
    try:
        truth = sample_of(processor, with_files(record, root))
    except ValueError as refused:
        try:
            read.meta(line)
        except DataError:
            return ""
        return f"only the processor refuses it: {refused}"
    meta, compact = read.meta_and_text(line)
    ours = expand(compact)
    if ours.input_ids.tolist() != truth["input_ids"][0].tolist():
        return f"tokens: {ours.input_ids.tolist()} != {truth['input_ids'][0].tolist()}"
    if ours.labels.tolist() != truth["labels"][0].tolist():
        return f"labels: {ours.labels.tolist()} != {truth['labels'][0].tolist()}"
    if "mm_token_type_ids" in truth:
        np.testing.assert_array_equal(ours.mm_token_type_ids, truth["mm_token_type_ids"][0])
    visuals = list(enumerate(meta.grids))
    seconds = meta.seconds or (0.0,) * len(visuals)
    # InternVL has one array for both.
    apart = "pixel_values_videos" in truth
    images = [v for v, second in zip(visuals, seconds, strict=True) if not (apart and second)]
    clips = [v for v, second in zip(visuals, seconds, strict=True) if apart and second]
    for chosen, names in ((images, IMAGE_NAMES), (clips, VIDEO_NAMES)):
        if found := visual_differences(read, line, make, chosen, truth, names):
            return f"{names[0]}: {found}"
    if "second_per_grid_ts" in truth:
        given = np.array([second for second in meta.seconds if second], dtype=np.float32)
        np.testing.assert_array_equal(given, truth["second_per_grid_ts"])
    return item_differences(samples[line], truth)


def item_differences(item: dict[str, torch.Tensor], truth: dict[str, torch.Tensor]) -> str:
    """How an item of `VlmSamples` differs from what the processor returns, with labels."""
    if item.keys() != truth.keys():
        return f"item: {sorted(item)} != {sorted(truth)}"
    unequal = [
        name
        for name, tensor in item.items()
        if tensor.dtype != truth[name].dtype or not torch.equal(tensor, truth[name])
    ]
    return f"item: other {', '.join(unequal)}" if unequal else ""


IMAGE_NAMES = ("pixel_values", "image_grid_thw")
VIDEO_NAMES = ("pixel_values_videos", "video_grid_thw")


def visual_differences(
    read: SampleReader,
    line: int,
    make: PixelMaker,
    visuals: list[tuple[int, Any]],
    truth: dict[str, Any],
    names: tuple[str, str],
) -> str:
    """How the images or videos of a sample differ from the processor's."""
    name, thw = names
    if not visuals or name not in truth:
        return "number" if visuals or name in truth else ""
    grids = [grid for _, grid in visuals]
    values = [read.pixels(line, n, grid) for n, grid in visuals]
    pixels = make(values, grids, dtype=torch.float32, device=torch.device("cpu")).numpy()
    theirs = truth[name].numpy()
    if name == "pixel_values" and "image_sizes" in truth:
        # LLaVA-OneVision pads the tiles of each image.
        theirs = np.concatenate([t[: g[0]] for t, g in zip(theirs, grids, strict=True)])
        if [list(grid[1:]) for grid in grids] != truth["image_sizes"].tolist():
            return f"sizes: {grids} != {truth['image_sizes'].tolist()}"
    if thw in truth and [list(grid) for grid in grids] != truth[thw].tolist():
        return f"grids: {grids} != {truth[thw].tolist()}"
    return "" if pixels.tobytes() == theirs.reshape(pixels.shape).tobytes() else "pixels"


def check_calls_together(read: SampleReader) -> None:
    """Compare samples that are read together with each read alone."""
    metas = {}
    for line in range(len(read)):
        with suppress(DataError):  # As the processor.
            metas[line] = read.meta_and_text(line)
    together = list(read.meta_and_text_together([(line,) for line in metas]))
    assert [meta for meta, _ in together] == [meta for meta, _ in metas.values()]
    assert [text.tobytes() for _, text in together] == [t.tobytes() for _, t in metas.values()]


def write_parquet(path: Path, records: list[dict[str, Any]]) -> Path:
    """The records, with the bytes of their images and videos in place of paths."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [
        {
            kind: [{"bytes": (path.parent / name).read_bytes(), "path": name} for name in value]
            if kind in ("images", "videos")
            else value
            for kind, value in record.items()
        }
        for record in records
    ]
    every = {"messages": [], "images": [], "videos": []}
    parquet.write_table(arrow.Table.from_pylist([every | row for row in rows]), path)
    return path


@pytest.mark.filterwarnings("ignore:Palette images with Transparency:UserWarning")
@pytest.mark.parametrize("family", TINY)
def test_samples_equal_those_of_the_processor(family: str, tmp_path: Path) -> None:
    model = tmp_path / "model"
    write_tiny_model(model, SMALLEST, family=family)
    root = tmp_path / "data"
    root.mkdir()
    records = odd_inputs(write_images(root))
    if family in FAMILIES_WITH_VIDEO:
        records |= videos(root)
        normalize_videos_otherwise(model)
    data = root / "data.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in records.values()))
    table = write_parquet(root / "data.parquet", list(records.values()))
    processor, make = processor_of(model), PixelMaker(family_for(model))
    wrong = {}
    for path in (data, table):
        read = SampleReader(model, DataConfig(path=path), max_tokens=1 << 20)
        samples = VlmSamples(model, path)
        for line, (name, record) in enumerate(records.items()):
            if found := differences(read, samples, make, line, processor, record, root):
                wrong[name, path.suffix] = found
        check_calls_together(read)
    assert wrong == {}
