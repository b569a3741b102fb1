"""The interface of a video processor: from the frames of a video to the pixels that a model takes.

The processor is that of transformers, whose class needs torchvision for two operators. Here torch
computes them, as torchvision would: released builds of torchvision fit some builds of torch only.
"""

from __future__ import annotations

import functools
import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL.Image import Resampling
from transformers.image_processing_backends import TorchvisionBackend
from transformers.image_utils import ChannelDimension, SizeDict
from transformers.video_utils import VideoMetadata, default_sample_indices_fn

from flowtrain.cost.flops import Grid
from flowtrain.models.errors import ModelError
from flowtrain.models.pixel_table import PixelTable, all_values
from flowtrain.models.videos import VideoHead, VideoLimits, VideoPlan


class _TorchOperators(TorchvisionBackend):
    """Operators of torchvision that transformers' processors call, computed by torch."""

    def resize(
        self, image: torch.Tensor, size: SizeDict, resample: Any = None, *_: Any, **__: Any
    ) -> torch.Tensor:
        target: tuple[Any, Any] = (size.height, size.width)
        return _scaled(image, target, resample)

    def normalize(  # type: ignore[override]
        self, image: torch.Tensor, mean: Any, std: Any, inplace: bool = False, **_: Any
    ) -> torch.Tensor:
        """Subtract the mean of each channel and divide by its standard deviation."""
        mean, std = (
            torch.as_tensor(value, dtype=image.dtype, device=image.device)[:, None, None]
            for value in (mean, std)
        )
        return (image.sub_(mean) if inplace else image.sub(mean)).div_(std)


def _scaled(frames: torch.Tensor, size: tuple[int, int], resample: Any) -> torch.Tensor:
    """Scale 8-bit frames, shape [..., channels, height, width], to a height and width."""
    if resample != Resampling.BICUBIC:
        raise ValueError(
            f"resample={resample} of the video processor: only {Resampling.BICUBIC:d} (bicubic) is "
            "supported"
        )
    if frames.shape[-2:] == size:
        return frames
    flat = frames.reshape(-1, *frames.shape[-3:])
    scaled = F.interpolate(flat, size=size, mode="bicubic", antialias=True)
    return scaled.reshape(*frames.shape[:-2], *size)


def _processor_class(module: str, name: str) -> Any:
    """A class of transformers, whose module may import torchvision for its annotations."""
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("torchvision"):
            raise
    for imported in _IMPORTED:
        sys.modules[imported] = ModuleType(imported)
        sys.modules[imported].__spec__ = ModuleSpec(imported, None)
    try:
        return getattr(importlib.import_module(module), name)
    finally:
        for imported in _IMPORTED:
            del sys.modules[imported]


_IMPORTED = [
    "torchvision",
    "torchvision.transforms",
    "torchvision.transforms.v2",
    "torchvision.transforms.v2.functional",
]


class VideoProcessor(ABC):
    """The video processor of a model.

    Args:
        folder: Hugging Face folder with the video processor.
        kind: Its class in `transformers.models`, as `module:name`.
        limits: Take the place of the processor's own.

    Attributes:
        smallest: Header of a video that stands for one that cannot be read.
        list_fps: Frames per second of a list of frames whose rate is not known: the rate at which
            the processor takes frames, so that it takes all of them, or else 2 as Qwen-VL's.

    Raises:
        ModelError: The folder's processor is of another class, or cannot keep the limits.
    """

    smallest: VideoHead
    list_fps: float
    _table: PixelTable

    def __init__(self, folder: Path, kind: str, limits: VideoLimits) -> None:
        module, name = kind.split(":")
        of_model = _processor_class(f"transformers.models.{module}", name)
        found, _ = of_model.get_video_processor_dict(folder)
        if (given := found.get("video_processor_type") or name) != name:
            raise ModelError(
                f"{folder}: video_processor_type={given} of the video processor is not {name}, "
                "that of the model; restore the model's own files"
            )
        options: dict[str, Any] = {}
        if limits.fps is not None:
            options |= {"fps": limits.fps, "num_frames": None, "do_sample_frames": True}
        if limits.max_frames is not None:
            options["max_frames"] = limits.max_frames
        # The operators come behind the class that calls them, and in front of torchvision's.
        with_torch: Any = type(name, (of_model, _TorchOperators), {})
        self._processor: Any = with_torch.from_pretrained(folder, **options)
        self.list_fps = getattr(self._processor, "fps", None) or 2.0
        self._max_frames = limits.max_frames
        self._frames: int = getattr(self._processor, "temporal_patch_size", 1)
        if limits.max_frames is not None and limits.max_frames < self._frames:
            raise ModelError(
                f"data.video_max_frames={limits.max_frames}: a patch of the model spans "
                f"{self._frames} frames; raise it to at least that"
            )
        if limits.max_pixels is not None:
            self._processor.size = self._at_most(limits.max_pixels)
        self._grid_of = functools.lru_cache(maxsize=4096)(self._compute_grid)

    def _at_most(self, pixels: int) -> dict[str, int]:
        """Limits of the processor with another upper one."""
        own = {name: value for name, value in dict(self._processor.size).items() if value}
        if own.keys() != {"shortest_edge", "longest_edge"}:
            raise ModelError(
                f"data.video_max_pixels={pixels}: the model's video processor scales every frame "
                f"to one size ({own}), and not by limits; set it to null"
            )
        if own["shortest_edge"] > pixels:
            raise ModelError(
                f"data.video_max_pixels={pixels} is less than the lower limit of the model's video "
                f"processor, {own['shortest_edge']}; raise it to at least that"
            )
        return {**own, "longest_edge": pixels}

    def plan(self, head: VideoHead) -> VideoPlan:
        """Plan of a video.

        Raises:
            ValueError: The processor does not take such a video.
        """
        metadata = VideoMetadata(
            total_num_frames=head.num_frames,
            fps=head.fps,
            width=head.width,
            height=head.height,
            duration=head.num_frames / head.fps,
            video_backend="pyav",
        )
        metadata.frames_indices = self._choose(metadata)
        # A reader passes each frame once.
        frames = sorted({index for index in metadata.frames_indices if index < head.num_frames})
        if not frames:
            raise ValueError(
                f"the model's video processor takes none of its {head.num_frames} frames"
            )
        grid = self._grid_of(len(frames), head.height, head.width)
        return VideoPlan(
            frames=tuple(frames),
            grid=grid,
            text=self._text(metadata, grid),
            seconds=self._seconds(metadata),
        )

    def _choose(self, metadata: VideoMetadata) -> list[int]:
        """Numbers of the frames that the processor takes, as it gives them."""
        sample = self._processor.sample_frames
        names = self._processor.valid_kwargs.__annotations__
        options = {name: getattr(self._processor, name, None) for name in names}
        try:
            if self._processor.do_sample_frames:
                chosen = sample(metadata=metadata, **options)
            else:
                chosen = default_sample_indices_fn(metadata)
            # Not every processor has a maximum of its own, and one that takes all frames ignores
            # it.
            if self._max_frames is not None and len(chosen) > self._max_frames:
                options["num_frames"] = self._max_frames // self._frames * self._frames
                chosen = sample(metadata=metadata, **{**options, "fps": None})
        except (TypeError, ArithmeticError) as error:
            raise ValueError(
                f"the model's video processor cannot choose among its {metadata.total_num_frames} "
                f"frames ({error}); set data.video_fps, or a higher one"
            ) from error
        return [int(index) for index in chosen]

    def _compute_grid(self, frames: int, height: int, width: int) -> Grid:
        # Tensors without values: the processor computes shapes alone.
        video = torch.empty((frames, 3, height, width), dtype=torch.uint8, device="meta")
        try:
            return self._grid(self._process(video))
        except RuntimeError as error:  # A processor that does not scale, for one.
            raise ValueError(
                f"the model's video processor does not take {frames} frames of {height} x {width} "
                f"pixels: {error}"
            ) from error

    def resize(self, frames: Iterable[NDArray[np.uint8]], grid: Grid) -> NDArray[np.uint8]:
        """Scale the frames of a video: the 8-bit values of which `normalize` makes pixels.

        Args:
            frames: Its planned frames, each of shape [height, width, 3]. They are scaled one by
                one, so that no more than one is held at its full size.
            grid: Its planned grid.

        Returns:
            Values of shape `value_shape`, in the order of the pixels.

        Raises:
            ValueError: The processor does not take these frames.
        """
        size = self._frame_size(grid)
        scaled = []
        for frame in frames:
            image = torch.from_numpy(frame).permute(2, 0, 1).contiguous()
            if self._processor.do_resize:
                image = _scaled(image, size, self._processor.resample)
            scaled.append(image)
        out: NDArray[np.uint8] = self._values_of(torch.stack(scaled)).numpy()
        return out.reshape(self.value_shape(grid))

    def normalize(self, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Pixels of videos as the model takes them, on the device of the values.

        Args:
            values: What `resize` returned for each video, joined in the first dimension.
            dtype: Dtype of the pixels; they are rounded to it from float32.
        """
        return self._table(values, dtype)

    def _values_of(self, video: torch.Tensor) -> torch.Tensor:
        """8-bit values of scaled frames, in the order of the pixels."""
        steps = {"do_rescale": False, "do_normalize": False}
        return self._values(self._process(video, do_resize=False, **steps))

    def _table_of(self, folder: Path, side: int, value: tuple[int, ...]) -> PixelTable:
        """The float of each 8-bit value, by the processor of transformers.

        Args:
            folder: Its folder, for messages.
            side: Height and width of a frame that it takes without scaling.
            value: Shape of the values of a video, without their first dimension.
        """
        video = all_values(side)
        values = self._values_of(video).view(-1, *value)
        floats = self._values(self._process(video, do_resize=False)).view(-1, *value)
        return PixelTable(values, floats, str(folder))

    def _process(self, video: torch.Tensor, **options: Any) -> Any:
        return self._processor(
            videos=[video],
            do_sample_frames=False,
            do_convert_rgb=False,
            input_data_format=ChannelDimension.FIRST,
            return_tensors="pt",
            **options,
        )

    def _values(self, processed: Any) -> torch.Tensor:
        """Pixels in the output of the processor."""
        values: torch.Tensor = processed["pixel_values_videos"]
        return values

    def read_inputs(
        self, inputs: Mapping[str, torch.Tensor]
    ) -> tuple[list[Grid], list[float], torch.Tensor]:
        """Videos of one sample, from the tensors that the Hugging Face processor returned for it.

        Args:
            inputs: The tensors of the sample, by name, with `pixel_values_videos`.

        Returns:
            Grid and seconds between the frames of each video, and the pixels of all of them as
            `normalize` makes them, joined in the first dimension.

        Raises:
            ModelError: A tensor is missing, or the tensors are not those of this processor.
        """
        raise ModelError(
            f"{type(self).__name__}: it has no read_inputs and model_inputs, which packing of "
            "processed videos needs; define them as docs/families.md says"
        )

    def sample_inputs(
        self, grids: Sequence[Grid], seconds: Sequence[float], pixels: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """The tensors that the Hugging Face processor returns for the videos of one sample.

        Args:
            grids: Grid of each video.
            seconds: Seconds between the frames of each.
            pixels: Pixels of all of them, joined in the first dimension.

        Raises:
            ModelError: The processor does not take these videos together.
        """
        return self.model_inputs(grids, pixels)

    def model_inputs(self, grids: Sequence[Grid], pixels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Tensors that the Hugging Face model takes for the videos of a packed row.

        Args:
            grids: Grids of the videos of all documents.
            pixels: Pixels of all of them, joined in the first dimension.

        Raises:
            ModelError: The model does not take these videos together.
        """
        return {"pixel_values_videos": pixels}

    @abstractmethod
    def num_tokens(self, grid: Grid) -> int:
        """Tokens of a video with this grid."""

    @abstractmethod
    def pixel_shape(self, grid: Grid) -> tuple[int, ...]:
        """Shape of the pixels of a video with this grid."""

    def value_shape(self, grid: Grid) -> tuple[int, ...]:
        """Shape of the 8-bit values of a video with this grid: `[n, 3, ...]`."""
        return self.pixel_shape(grid)

    @abstractmethod
    def _grid(self, processed: Any) -> Grid:
        """Grid of the output of the processor."""

    @abstractmethod
    def _frame_size(self, grid: Grid) -> tuple[int, int]:
        """Height and width in pixels to which frames are scaled."""

    @abstractmethod
    def _text(self, metadata: VideoMetadata, grid: Grid) -> str:
        """Text of a video, with a placeholder for each block."""

    def _seconds(self, metadata: VideoMetadata) -> float:
        """Seconds between the frames of the grid of a video."""
        return self._frames / metadata.sampled_fps
