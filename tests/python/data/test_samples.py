from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from support import float_pixels

from flowtrain.config.data import DataConfig
from flowtrain.data import DataError
from flowtrain.data.samples import SampleReader
from flowtrain.data.text import SampleText, expand
from flowtrain.models.qwen_images import QwenImageProcessor
from flowtrain.models.tiny import SMALLEST, TINY, write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder)
    return folder


def reader(
    model: Path, folder: Path, *records: Any, max_tokens: int = 4096, **data: Any
) -> SampleReader:
    path = folder / "data.jsonl"
    lines = [r if isinstance(r, str) else json.dumps(r) for r in records]
    path.unlink(missing_ok=True)  # Earlier readers keep the file that they opened.
    path.write_text("\n".join(lines) + "\n")
    return SampleReader(model, DataConfig(path=path, **data), max_tokens)


def picture(folder: Path, name: str, size: tuple[int, int], **options: Any) -> str:
    pixels = np.random.default_rng(0).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / name, **options)
    return name


def text_of(read: SampleReader, line: int) -> SampleText:
    return expand(read.meta_and_text(line)[1])


def pixels_of(model: Path, read: SampleReader) -> NDArray[np.float32]:
    [grid, *_] = read.meta(0).grids
    return float_pixels(model, (read.pixels(0, 0, grid), grid))


def chat(*turns: str, images: tuple[Any, ...] = ()) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
    return {"messages": messages, "images": list(images)}


@pytest.fixture
def released(model: Path, tmp_path: Path) -> Path:
    """The model with processors named as in the released folders."""
    folder = tmp_path / "released"
    shutil.copytree(model, folder)
    path = folder / "preprocessor_config.json"
    config = json.loads(path.read_text())
    config["processor_class"] = "Qwen3VLProcessor"
    path.write_text(json.dumps({**config, "image_processor_type": "Qwen2VLImageProcessorFast"}))
    video = {**config, "video_processor_type": "Qwen3VLVideoProcessor"}
    del video["image_processor_type"]
    (folder / "video_preprocessor_config.json").write_text(json.dumps(video))
    return folder


def test_a_released_folder_is_read_without_its_video_processor(
    model: Path, released: Path, tmp_path: Path
) -> None:
    record = chat("<image>Read.", "12", images=(picture(tmp_path, "a.png", (70, 33)),))
    ours, truth = (reader(folder, tmp_path, record) for folder in (released, model))
    np.testing.assert_array_equal(text_of(ours, 0).input_ids, text_of(truth, 0).input_ids)
    np.testing.assert_array_equal(pixels_of(released, ours), pixels_of(model, truth))


def test_a_released_folder_loads_where_torchvision_is_installed(released: Path) -> None:
    pytest.importorskip("torchvision")
    from transformers import AutoProcessor

    assert type(AutoProcessor.from_pretrained(released)).__name__ == "Qwen3VLProcessor"


def test_an_error_names_a_model_folder_that_cannot_be_read(model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "damaged")
    folder.joinpath("tokenizer.json").write_text("{")
    with pytest.raises(DataError, match=f"the model's folder {folder} cannot be read: "):
        reader(folder, tmp_path, chat("a", "b"))
    with pytest.raises(DataError, match="gone: no config.json"):
        reader(tmp_path / "gone", tmp_path, chat("a", "b"))


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("patch_size", "patch_size=4"),
        ("temporal_patch_size", "temporal_patch_size=2"),
        ("merge_size", "spatial_merge_size=2"),
    ],
)
def test_a_processor_of_another_model_is_refused(
    model: Path, tmp_path: Path, name: str, models: str
) -> None:
    path = shutil.copytree(model, tmp_path / "mixed") / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: 1}))
    message = rf"mixed: {name}=1 of the .*preprocessor_config.* vision_config\.{models} of config"
    with pytest.raises(DataError, match=message):
        reader(path.parent, tmp_path, chat("a", "b"))


def test_a_rotated_jpeg_is_read_upright(model: Path, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = picture(tmp_path, "turned.jpg", (64, 16), exif=exif, quality=95)
    read = reader(model, tmp_path, chat("<image>Read.", "1", images=(turned,)))
    assert read.meta(0).grids == ((1, 16, 4),)
    upright = Image.open(tmp_path / turned).transpose(Image.Transpose.ROTATE_270)
    upright.save(tmp_path / "upright.png")
    straight = reader(model, tmp_path, chat("<image>Read.", "1", images=("upright.png",)))
    np.testing.assert_array_equal(pixels_of(model, read), pixels_of(model, straight))


def test_both_conversation_formats_give_the_same_sample(model: Path, tmp_path: Path) -> None:
    name = picture(tmp_path, "a.png", (16, 8))
    turns = [{"from": "human", "value": "<image>Read."}, {"from": "gpt", "value": "1"}]
    parts = [{"type": "image", "image": name}, {"type": "text", "text": "Read."}]
    inline = [{"role": "user", "content": parts}, {"role": "assistant", "content": "1"}]
    read = reader(
        model,
        tmp_path,
        chat("<image>Read.", "1", images=(name,)),
        {"conversations": turns, "image": name},
        {"messages": inline},
    )
    for line in (1, 2):
        np.testing.assert_array_equal(text_of(read, line).input_ids, text_of(read, 0).input_ids)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{not json", r"data\.jsonl:2: not JSON"),
        ("[1]", r"data\.jsonl:2: the line is a JSON list; it must be an object"),
        ({"messages": []}, "at least one turn"),
        (chat("<image><image>", "1", images=("a.png",)), "2 image marks in the messages and 1"),
        (chat("<image>", "1", images=("gone.png",)), r"gone\.png: there is no such file"),
        (chat("<image>", "1", images=("http://x/y.png",)), "no local path"),
        (chat("only asked"), "add an assistant turn"),
        ({"messages": [{"role": "judge", "content": "1"}]}, "role 'judge'"),
    ],
)
def test_an_error_names_the_bad_line(
    model: Path, tmp_path: Path, record: Any, message: str
) -> None:
    read = reader(model, tmp_path, chat("a", "b"), record)
    with pytest.raises(DataError, match=message):
        read.meta(1)


def test_the_error_of_a_long_sample_names_tokens_and_limit(model: Path, tmp_path: Path) -> None:
    read = reader(model, tmp_path, chat("a" * 100, "b"), max_tokens=50)
    with pytest.raises(DataError, match=r"data\.jsonl:1: \d+ tokens exceed .*=50"):
        read.meta(0)


def test_a_long_sample_is_dropped(model: Path, tmp_path: Path) -> None:
    read = reader(
        model, tmp_path, chat("a" * 100, "b"), chat("a", "b"), max_tokens=50, oversize="drop"
    )
    assert [read.meta(line).fit for line in (0, 1)] == ["dropped", "whole"]


def test_a_long_sample_is_truncated_but_never_inside_an_image(model: Path, tmp_path: Path) -> None:
    names = tuple(picture(tmp_path, f"{n}.png", (8 * n, 8)) for n in (2, 3))
    record = chat("<image>Read.", "12", "<image>Again?", "34", images=names)
    read = reader(model, tmp_path, record)
    whole, grids = text_of(read, 0), read.meta(0).grids
    second = int(np.flatnonzero(whole.mm_token_type_ids)[2])
    kept: dict[int, tuple[int, int]] = {}
    for limit in range(1, len(whole.input_ids) + 1):
        read = reader(model, tmp_path, record, max_tokens=limit, oversize="truncate")
        meta, text = read.meta(0), text_of(read, 0)
        end = len(text.input_ids)
        kept[limit] = (end, len(meta.grids))
        assert end == meta.num_tokens <= limit
        np.testing.assert_array_equal(text.input_ids, whole.input_ids[:end])
        np.testing.assert_array_equal(text.labels, whole.labels[:end])
        assert meta.grids == grids[: len(meta.grids)]
        assert sum(meta.image_lengths) == text.mm_token_type_ids.sum()
        assert meta.num_targets == (whole.labels[1:end] != -100).sum()
        if end == len(whole.input_ids):
            assert meta.fit == "whole"
        else:
            assert meta.fit == ("truncated" if meta.num_targets else "dropped")
    # The start token of the second image is cut with the image, unless the image fits whole.
    assert kept[second - 2] == (second - 2, 1)
    for limit in range(second - 1, second + 3):
        assert kept[limit] == (second - 1, 1)
    assert kept[second + 3] == (second + 3, 2)


def test_a_truncated_png_is_an_error_or_zeros(model: Path, tmp_path: Path) -> None:
    name = picture(tmp_path, "cut.png", (64, 64))
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    record = chat("<image>Read.", "1", images=(name,))
    assert reader(model, tmp_path, record).meta(0).grids == ((1, 16, 16),)
    with pytest.raises(DataError, match=r"data\.jsonl:1: image .*cut\.png"):
        pixels_of(model, reader(model, tmp_path, record))
    skipped = pixels_of(model, reader(model, tmp_path, record, bad_image="skip"))
    assert skipped.shape == (256, 96) and not skipped.any()


@pytest.mark.parametrize(
    ("planned", "read"), [((64, 16), None), (None, (64, 16)), ((64, 16), (16, 64))]
)
def test_a_file_that_changes_after_it_was_planned_keeps_its_planned_grid(
    model: Path,
    tmp_path: Path,
    planned: tuple[int, int] | None,
    read: tuple[int, int] | None,
) -> None:
    record = chat("<image>Read.", "1", images=("a.png",))
    planner, rank, strict = (
        reader(model, tmp_path, record, bad_image=bad) for bad in ("skip", "skip", "error")
    )
    if planned is not None:
        picture(tmp_path, "a.png", planned)
    meta = planner.meta(0)
    [grid] = meta.grids
    tmp_path.joinpath("a.png").unlink(missing_ok=True)
    if read is not None:
        picture(tmp_path, "a.png", read)
    pixels = rank.pixels(0, 0, grid)
    assert pixels.skipped
    assert float_pixels(model, (pixels, grid)).shape == (grid[1] * grid[2], 96)
    with pytest.raises(
        DataError, match=r"data\.jsonl:1: image .*a\.png: (its grid is|there is no)"
    ):
        strict.pixels(0, 0, grid)


def test_pixel_limits_scale_images_as_the_processor_does(model: Path, tmp_path: Path) -> None:
    from transformers import AutoImageProcessor

    limits = {"min_pixels": 64 * 64, "max_pixels": 80 * 80}
    size = {"shortest_edge": 64 * 64, "longest_edge": 80 * 80}
    processor = AutoImageProcessor.from_pretrained(model, size=size)
    for width, height in ((24, 16), (200, 96)):
        name = picture(tmp_path, f"{width}.png", (width, height))
        read = reader(model, tmp_path, chat("<image>?", "1", images=(name,)), **limits)
        with Image.open(tmp_path / name) as image:
            truth = processor(images=[image], return_tensors="np")
        assert [list(grid) for grid in read.meta(0).grids] == truth["image_grid_thw"].tolist()
        np.testing.assert_array_equal(pixels_of(model, read), truth["pixel_values"])


def test_limits_of_one_image_scale_it_as_the_processor_does(model: Path, tmp_path: Path) -> None:
    from transformers import AutoImageProcessor

    name = picture(tmp_path, "a.png", (200, 96))
    sizes = [(1024, 6400), (64, 1024), (30_000, 60_000)]
    entries: list[Any] = [
        name,
        *({"path": name, "min_pixels": least, "max_pixels": most} for least, most in sizes),
        name,
    ]
    record = chat("<image>" * len(entries) + "?", "1", images=tuple(entries))
    read = reader(model, tmp_path, record, max_pixels=2048)
    grids = read.meta(0).grids
    limits = [(64, 2048), *sizes, (64, 2048)]
    for number, (grid, (least, most)) in enumerate(zip(grids, limits, strict=True)):
        size = {"shortest_edge": least, "longest_edge": most}
        with Image.open(tmp_path / name) as image:
            truth = AutoImageProcessor.from_pretrained(model, size=size)(
                images=[image], return_tensors="np"
            )
        assert [list(grid)] == truth["image_grid_thw"].tolist()
        found = float_pixels(model, (read.pixels(0, number, grid), grid))
        np.testing.assert_array_equal(found, truth["pixel_values"])
    assert len(set(grids)) == 4


@pytest.mark.parametrize(
    ("given", "size"), [((60, 30), (64, 32)), ((4, 4), (8, 8)), ((4000, 1000), (88, 16))]
)
def test_the_size_of_one_image_may_be_given(
    model: Path, tmp_path: Path, given: tuple[int, int], size: tuple[int, int]
) -> None:
    from transformers import AutoImageProcessor

    name = picture(tmp_path, "a.png", (50, 70))
    entry = {"path": name, "resized_height": given[0], "resized_width": given[1]}
    read = reader(model, tmp_path, chat("<image>?", "1", images=(entry,)), max_pixels=2048)
    with Image.open(tmp_path / name) as image:
        scaled = image.resize(size[::-1], Image.Resampling.BICUBIC)
    processor = AutoImageProcessor.from_pretrained(model)
    truth = processor(images=[scaled], do_resize=False, return_tensors="np")
    assert [list(grid) for grid in read.meta(0).grids] == truth["image_grid_thw"].tolist()
    np.testing.assert_array_equal(pixels_of(model, read), truth["pixel_values"])


@pytest.mark.parametrize("family", sorted(set(TINY) - {"qwen3_vl", "qwen3_vl_moe", "qwen2_5_vl"}))
def test_limits_of_one_image_are_refused_or_ignored_where_the_family_has_tiles(
    family: str, tmp_path: Path
) -> None:
    write_tiny_model(tmp_path / "model", SMALLEST, family=family)
    entry = {"path": picture(tmp_path, "a.png", (20, 20)), "max_pixels": 64}
    record = chat("<image>?", "1", images=(entry,))
    read = reader(tmp_path / "model", tmp_path, record, bad_image="skip")
    with pytest.raises(
        DataError, match=r"data.jsonl:1: image .*a.png: max_pixels=64: .*data.ignore"
    ):
        read.meta(0)
    assert reader(tmp_path / "model", tmp_path, record, ignore=("max_pixels",)).meta(0).grids


@pytest.mark.parametrize(
    ("family", "limits", "message"),
    [
        ("qwen3_vl", {"min_pixels": 1 << 21}, r"min_pixels=2097152 is more than data\.max_pixels="),
        ("llava", {"max_pixels": 64}, r"max_pixels=64: llava makes tiles of 16 x 16 pixels"),
    ],
)
def test_pixel_limits_that_cannot_hold_are_refused(
    family: str, limits: dict[str, int], message: str, tmp_path: Path
) -> None:
    write_tiny_model(tmp_path / "model", SMALLEST, family=family)
    with pytest.raises(DataError, match=message):
        reader(tmp_path / "model", tmp_path, chat("?", "1"), **limits)


def test_pixels_that_disagree_with_the_planned_size_are_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = picture(tmp_path, "a.png", (24, 8))
    read = reader(model, tmp_path, chat("<image>?", "1", images=(name,)), bad_image="skip")
    monkeypatch.setattr(
        QwenImageProcessor, "resize", lambda *_, **__: np.zeros((9, 3, 1, 4, 4), dtype=np.uint8)
    )
    with pytest.raises(DataError, match=r"made \(9, .* where its size of 8 x 24 pixels gives"):
        pixels_of(model, read)
