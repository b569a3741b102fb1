"""Features are found by all that decides about the pixels, without decoding the file."""

from __future__ import annotations

import json
import shutil
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clips import write_clip
from PIL import Image

from flowtrain.cache import CacheFolder, Context, Writer
from flowtrain.config.data import DataConfig
from flowtrain.data import DataError, images
from flowtrain.data.pixel_maker import SamplePixels, StoredRows
from flowtrain.data.samples import SampleReader
from flowtrain.models.tiny import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder)
    return folder


def picture(path: Path, *, seed: int = 0, width: int = 48) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 255, (32, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


class Readers:
    """Readers of one sample each, and the cache that they look into."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model, self.folder = model, folder
        self.cache = CacheFolder(folder / "cache")

    def reader(self, *, fields: dict[str, Any], **data: Any) -> SampleReader:
        marks = "<image>" * len(fields.get("images", ())) + "<video>" * len(
            fields.get("videos", ())
        )
        turns = [{"role": "user", "content": f"{marks}?"}, {"role": "assistant", "content": "1"}]
        path = self.folder / "data.jsonl"
        path.unlink(missing_ok=True)
        path.write_text(json.dumps({"messages": turns, **fields}) + "\n")
        return SampleReader(self.model, DataConfig(path=path, **data), 4096)

    def read(self, image: int = 0, **given: Any) -> SamplePixels | StoredRows:
        """Features of one visual in a new process, so to speak."""
        read = self.reader(**given)
        folder = str(self.cache.path / CONTEXT.name)
        return read.features(0, image, read.meta(0).grids[image], folder)

    def store(self, found: SamplePixels | StoredRows, rows: bytes) -> None:
        assert isinstance(found, SamplePixels) and found.key is not None
        with self.cache.use(CONTEXT) as folder:
            writer = Writer(self.cache, folder)
            assert writer.put(found.key, memoryview(rows))
            writer.close()


CONTEXT = Context({"model": "a"})


@pytest.fixture
def readers(model: Path, tmp_path: Path) -> Readers:
    return Readers(model, tmp_path)


def test_a_hit_is_not_decoded_wherever_the_bytes_come_from(
    readers: Readers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = picture(tmp_path / "a.png")
    missed = readers.read(fields={"images": ["a.png"]})
    assert isinstance(missed, SamplePixels) and missed.values is not None
    readers.store(missed, b"rows of a")

    def refuse(*_: object) -> None:
        raise AssertionError("an image was decoded")

    monkeypatch.setattr(images, "load_image", refuse, raising=False)
    monkeypatch.setattr("flowtrain.data.pixels.read_upright", refuse)
    shutil.copy(path, tmp_path / "copy.png")
    inline = f"data:image/png;base64,{b64encode(path.read_bytes()).decode()}"
    for name in ("a.png", "copy.png", inline):
        found = readers.read(fields={"images": [name]})
        assert isinstance(found, StoredRows) and found.rows.tobytes() == b"rows of a"


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: {"fields": {"images": [picture(folder / "b.png", seed=1).name]}},
        lambda folder: {"fields": {"images": ["a.png"]}, "max_pixels": 1 << 20},
        lambda folder: {"fields": {"images": [{"path": "a.png", "max_pixels": 1 << 20}]}},
        # Some processors scale an image in another way beside others.
        lambda folder: {"fields": {"images": ["a.png", "a.png"]}},
        lambda folder: {"fields": {"videos": [["a.png", "a.png"]]}},
    ],
    ids=["bytes", "limits", "own_limits", "more_images", "video"],
)
def test_another_image_or_limit_is_no_hit(
    readers: Readers, tmp_path: Path, change: Callable[[Path], dict[str, Any]]
) -> None:
    picture(tmp_path / "a.png")
    readers.store(readers.read(fields={"images": ["a.png"]}), b"rows of a")
    assert isinstance(readers.read(**change(tmp_path)), SamplePixels)
    assert isinstance(readers.read(fields={"images": ["a.png"]}), StoredRows)


def test_another_grid_is_no_hit(readers: Readers, tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    readers.store(readers.read(fields={"images": ["a.png"]}), b"rows of a")
    read = readers.reader(fields={"images": ["a.png"]})
    frames, height, width = read.meta(0).grids[0]
    with pytest.raises(DataError, match="its grid is"):
        read.features(0, 0, (frames, height, 2 * width), str(readers.cache.path / CONTEXT.name))


def test_what_is_skipped_or_changes_while_it_is_read_is_not_stored(
    readers: Readers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.png").write_bytes(b"no image")
    for name in ("bad.png", "missing.png"):
        bad = readers.read(fields={"images": [name]}, bad_image="skip")
        assert bad.skipped and isinstance(bad, SamplePixels) and bad.key is None

    # What is decoded is what the digest is of, whatever happens to the file meanwhile.
    one, two = picture(tmp_path / "a.png"), picture(tmp_path / "b.png", seed=1)
    read = readers.reader(fields={"images": ["a.png"]})
    [grid] = read.meta(0).grids
    folder = str(readers.cache.path / CONTEXT.name)
    expected = read.pixels(0, 0, grid).values
    decode = images.read_upright

    def late(*given: Any) -> Any:
        shutil.copy(two, one)
        return decode(*given)

    with monkeypatch.context() as patch:
        patch.setattr("flowtrain.data.pixels.read_upright", late)
        found = read.features(0, 0, grid, folder)
    assert isinstance(found, SamplePixels) and found.key is not None
    np.testing.assert_array_equal(found.values, expected)

    # A video is read twice, and its file may change in between.
    write_clip(tmp_path / "a.mp4", frames=4, height=16, width=16, fps=2, seed=1)
    other = write_clip(tmp_path / "b.mp4", frames=4, height=16, width=16, fps=2, seed=2)
    read = readers.reader(fields={"videos": ["a.mp4"]})
    [grid] = read.meta(0).grids
    found = read.features(0, 0, grid, folder)
    assert isinstance(found, SamplePixels) and found.key is not None
    from flowtrain.data import content

    once = content.content_of

    def changed(file: Any) -> Any:
        known = once(file)
        shutil.copy(other, tmp_path / "a.mp4")
        return known

    monkeypatch.setattr("flowtrain.data.pixels.content_of", changed)
    found = read.features(0, 0, grid, folder)
    assert isinstance(found, SamplePixels) and found.key is None and not found.skipped


def test_an_image_of_pillow_is_neither_found_nor_stored() -> None:
    from flowtrain.data.content import content_of
    from flowtrain.data.files import IMAGE, VIDEO, VisualFile

    file = VisualFile(IMAGE, Image.new("RGB", (8, 8)), "an image")
    assert content_of(file) is None
    assert content_of(replace(file, kind=VIDEO, source=(file,))) is None
