"""Pixels and planned sizes of all kinds of image files equal those of the model's processor."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from support import float_pixels

from flowtrain.config.data import DataConfig
from flowtrain.data import DataError
from flowtrain.data.files import IMAGE, as_json, visual_file
from flowtrain.data.images import read_upright, upright_size
from flowtrain.data.samples import SampleReader
from flowtrain.models.tiny import write_tiny_model

XMP = '<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder)
    return folder


def reader(model: Path, images: list[Path], bad_image: str = "error") -> SampleReader:
    """A sample with one image on each line."""
    turns = [{"role": "user", "content": "<image>?"}, {"role": "assistant", "content": "1"}]
    path = images[0].parent / "data.jsonl"
    path.write_text(
        "".join(json.dumps({"messages": turns, "images": [str(image)]}) + "\n" for image in images)
    )
    return SampleReader(model, DataConfig(path=path, bad_image=bad_image), 4096)


def noise(mode: str = "RGB", size: tuple[int, int] = (48, 16)) -> Image.Image:
    generator = np.random.default_rng(0)
    if mode == "I;16":
        return Image.fromarray(generator.integers(0, 1 << 16, size[::-1], dtype=np.uint16))
    if mode in ("P", "1"):
        return noise().quantize(16) if mode == "P" else noise().convert("1")
    channels = len(Image.new(mode, (1, 1)).getbands())
    values = generator.integers(0, 256, (size[1], size[0], channels), dtype=np.uint8)
    return Image.fromarray(values.squeeze(), mode)


def orientation(value: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = value
    return exif


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def put_before_end(path: Path, extra: bytes) -> None:
    """Insert a chunk after the pixels of a PNG, where the standard allows metadata."""
    whole = path.read_bytes()
    path.write_bytes(whole[:-12] + extra + whole[-12:])


def write_files(folder: Path) -> list[Path]:
    """One file of each kind that occurs in data sets."""
    for mode in ("RGB", "RGBA", "L", "LA", "P", "1", "I;16"):
        noise(mode).save(folder / f"{mode.replace(';', '')}.png")
    noise("P").save(folder / "transparent.png", transparency=bytes([0, 128] + [255] * 14))
    noise().save(folder / "key_colour.png", transparency=tuple(noise().getpixel((0, 0))))
    noise("CMYK").save(folder / "cmyk.jpg")
    noise("CMYK").save(folder / "cmyk.tif")
    noise("P").save(
        folder / "animated.gif", save_all=True, append_images=[noise("P")], transparency=2
    )
    noise("RGBA").save(folder / "animated.png", save_all=True, append_images=[noise("RGBA")])
    for value in range(1, 9):
        for kind in ("jpg", "png", "webp"):
            noise().save(folder / f"turned{value}.{kind}", exif=orientation(value))
        noise().save(folder / f"turned{value}.tif", tiffinfo={0x0112: value})
    noise().save(folder / "packed.tif", tiffinfo={0x0112: 6}, compression="tiff_lzw")
    noise().save(
        folder / "pages.tif", tiffinfo={0x0112: 6}, save_all=True, append_images=[noise("L")]
    )
    noise().save(folder / "xmp.tif", tiffinfo={700: XMP.encode()})
    noise().save(folder / "xmp.jpg", xmp=XMP.encode())
    for name, key, text in (
        ("xmp.png", "XML:com.adobe.xmp", XMP),
        ("raw.png", "Raw profile type exif", f"\nexif\n\n{orientation(6).tobytes().hex()}\n"),
    ):
        info = PngInfo()
        (info.add_itxt if key == "XML:com.adobe.xmp" else info.add_text)(key, text)
        noise().save(folder / name, pnginfo=info)
    noise().save(folder / "late.png")
    put_before_end(folder / "late.png", chunk(b"eXIf", orientation(6).tobytes()[6:]))
    return sorted(file for file in folder.iterdir() if file.is_file())


@pytest.mark.filterwarnings("ignore:Palette images with Transparency:UserWarning")
def test_pixels_equal_those_of_the_models_processor(model: Path, tmp_path: Path) -> None:
    from transformers import AutoImageProcessor
    from transformers.image_utils import load_image

    files = write_files(tmp_path)
    processor = AutoImageProcessor.from_pretrained(model)
    read = reader(model, files)
    wrong = []
    for line, file in enumerate(files):
        with Image.open(file) as image:  # load_image(path) leaves it open.
            truth = processor(images=[load_image(image)], return_tensors="np")
        grid = tuple(truth["image_grid_thw"][0].tolist())
        try:
            [planned] = read.meta(line).grids
            ours = read.pixels(line, 0, planned)
        except DataError as error:
            wrong.append(f"{file.name}: {error}")
            continue
        if planned != grid:
            wrong.append(f"{file.name}: planned {planned}, read {grid}")
        elif float_pixels(model, (ours, grid)).tobytes() != truth["pixel_values"].tobytes():
            wrong.append(f"{file.name}: other pixels")
    assert wrong == []


@pytest.mark.filterwarnings("ignore:Palette images with Transparency:UserWarning")
def test_an_image_within_a_record_equals_its_file(tmp_path: Path) -> None:
    for path in write_files(tmp_path):
        content = path.read_bytes()
        with Image.open(path) as opened:
            values = [path, content, {"bytes": content}, as_json(content), opened, as_json(opened)]
            files = [visual_file(value, IMAGE, 1, None, "row 0") for value in values]
            sizes = [upright_size(file, "row 0") for file in files]
            uprights = [read_upright(file, "row 0") for file in files]
        assert len(set(sizes)) == 1, path
        assert {upright.size for upright in uprights} == {sizes[0][::-1]}
        assert len({upright.tobytes() for upright in uprights}) == 1, path


def test_a_bad_image_within_a_record_is_named_by_its_place() -> None:
    whole = (noise().tobytes(), b"", b"<html>")
    for number, content in enumerate(whole, 1):
        file = visual_file(content, IMAGE, number, None, "")
        with pytest.raises(
            DataError,
            match=rf"^row 4: image {number} of the record: cannot identify it as an image; "
            r"supported are JPEG, PNG, .*; repair the data, drop the sample, or set "
            r"data\.bad_image=skip$",
        ):
            upright_size(file, "row 4")


def test_sizes_are_read_from_headers_alone(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [file for file in write_files(tmp_path) if file.name != "late.png"]
    read = reader(model, files)

    def decode(image: Image.Image) -> None:
        raise AssertionError("an image was decoded for its size")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", decode)
    monkeypatch.setattr("PIL.WebPImagePlugin.WebPImageFile.load", decode)
    for line in range(len(files)):
        read.meta(line)


def write_bomb(path: Path) -> None:
    size = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", b""))


def write_cut(path: Path) -> None:
    noise().save(path, "png")
    path.write_bytes(path.read_bytes()[:-60])


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "there is no such file"),
    "folder": (lambda path: path.mkdir(), "not a regular file"),
    "pipe": (os.mkfifo, "not a regular file"),
    "empty": (lambda path: path.write_bytes(b""), "cannot identify"),
    "text": (lambda path: path.write_text("<html>"), "cannot identify"),
    "bomb": (write_bomb, r"400000000 pixels\) exceeds limit"),
    "bad size": (lambda path: path.write_bytes(b"P6\n1x 2\n255\n"), "ValueError"),
    "bad exif": (lambda path: noise().save(path, "webp", exif=b"Exif\0\0BM"), "not a TIFF"),
    "thin": (lambda path: noise().resize((603, 2)).save(path, "png"), "aspect ratio"),
    "cut": (write_cut, "truncated"),
    "program": (
        lambda path: path.write_bytes(EPS),
        "its first bytes are those of EPS; supported are JPEG",
    ),
    "other": (
        lambda path: noise().save(path, "sgi"),
        "its first bytes are those of SGI; supported are JPEG",
    ),
    "pointer": (lambda path: path.write_bytes(LFS), "git lfs pull"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_an_error_that_names_it_or_is_skipped(
    model: Path, tmp_path: Path, name: str
) -> None:
    write, message = BAD[name]
    path = tmp_path / "bad"
    write(path)
    read = reader(model, [path])
    with pytest.raises(DataError, match=rf"data\.jsonl:1: image {path}: .*{message}.*; repair"):
        read.pixels(0, 0, read.meta(0).grids[0])
    read = reader(model, [path], bad_image="skip")
    [grid] = read.meta(0).grids
    pixels = read.pixels(0, 0, grid)
    assert pixels.skipped
    zeros = float_pixels(model, (pixels, grid))
    assert not zeros.any()
    assert read.meta(0).image_lengths == (len(zeros) // 4,)
    # The smallest image, unless the header has a size.
    assert grid == ((1, 4, 12) if name == "cut" else (1, 2, 2))
    assert zeros.shape == (grid[1] * grid[2], 96)
