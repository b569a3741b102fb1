"""Configuration of the samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from flowtrain.config.checks import not_negative, positive, require
from flowtrain.config.sources import SourceConfig, check_import_path, check_sources


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Where samples come from, and what to do with unusable ones."""

    path: Path | None = None
    """Samples in the conversation format: a `.jsonl` file with one object per line, a `.json` file
    with an array of objects, a `.parquet` file with one row per sample, a pattern of such files
    (`shards/*.jsonl`), or a folder written by `save_to_disk` of Hugging Face datasets."""
    dataset: str | None = None
    """Function that returns the samples, as `package.module:make`; exclusive with `path`. It takes
    no arguments and returns a map-style data set, or an iterable one, which is read as a stream.
    Items are dictionaries like the objects of a `.jsonl` file."""
    sources: tuple[SourceConfig, ...] = ()
    """Several data sets with weights, in place of `path` or `dataset`."""
    image_root: Path | None = None
    """Base folder of relative image paths; by default the folder that contains `path`. Without
    `path` there is no default."""
    ignore: tuple[str, ...] = ()
    """Names of fields that are read as if no record, turn, part or image had them. A field that is
    not used and not named here is an error, since its content would be lost."""
    workers: int = 1
    """Worker processes per rank; with 0 a thread of the rank reads, which slows its computation."""
    shuffle: bool = True
    """Shuffle each epoch, seeded by `train.seed`; otherwise use the order of the file. A stream
    needs `false`."""
    bad_image: Literal["error", "skip"] = "error"
    """Handling of an image or video file that cannot be used. `error` ends the run. `skip`
    encodes zeros of the size in the file's header, or of the smallest image or video if there is no
    header, and masks and counts the sample."""
    oversize: Literal["error", "drop", "truncate"] = "error"
    """Handling of a sample longer than `train.microbatch_tokens`. `error` ends the run. `drop`
    leaves the sample out. `truncate` keeps its first tokens and the images and videos that fit
    completely, and drops the sample if no target is left. Dropped and truncated samples are
    counted."""

    min_pixels: int | None = None
    """Pixels below which an image is enlarged; null takes the limit of the model's processor. Only
    Qwen-VL scales images by limits."""
    max_pixels: int | None = None
    """Pixels above which an image is reduced; null takes the limit of the model's processor."""
    video_fps: float | None = None
    """Frames that are taken of a second of a video; null takes what the model's processor says."""
    video_max_frames: int | None = None
    """Maximum frames that are taken of a video; null takes what the model's processor says."""
    video_max_pixels: int | None = None
    """Pixels above which the frames of a video are reduced; null takes the limit of the model's
    processor. Of all frames together for Qwen3-VL, of each frame for Qwen2.5-VL; the other families
    scale each frame to one size."""

    def __post_init__(self) -> None:
        require(
            [self.path, self.dataset, self.sources or None].count(None) == 2,
            f"data.path={self.path}, data.dataset={self.dataset}, "
            f"data.sources=[{', '.join(source.name for source in self.sources)}]: give exactly one "
            "of the three: path is a file or folder, dataset a Python function as "
            "package.module:make, sources a list of these with weights",
        )
        if self.dataset is not None:
            check_import_path("data.dataset", self.dataset)
        check_sources(self.sources)
        not_negative(data__workers=self.workers)
        given = {
            "min_pixels": self.min_pixels,
            "max_pixels": self.max_pixels,
            "video_fps": self.video_fps,
            "video_max_frames": self.video_max_frames,
            "video_max_pixels": self.video_max_pixels,
        }
        positive(**{f"data__{name}": value for name, value in given.items() if value is not None})

    @property
    def name(self) -> str:
        """Path or import path of the data set, for messages."""
        return "data.sources" if self.sources else self.all_sources[0].name

    @property
    def all_sources(self) -> tuple[SourceConfig, ...]:
        """The data sets of `sources`, or the only one, with their base folders of images."""
        sources = self.sources or (SourceConfig(path=self.path, dataset=self.dataset),)
        return tuple(
            replace(source, image_root=source.image_root or self.image_root) for source in sources
        )
