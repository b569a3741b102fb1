"""The video processors of Qwen-VL models: patches of several frames, scaled to whole blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.video_utils import VideoMetadata

from flowtrain.cost.flops import Grid
from flowtrain.models.images import required
from flowtrain.models.qwen_images import check_patches
from flowtrain.models.video_processor import VideoProcessor
from flowtrain.models.videos import VideoHead, VideoLimits


class QwenVideoProcessor(VideoProcessor):
    """A grid is frames, height and width of a video in patches.

    A patch spans `temporal_patch_size` frames of the file. Pixels have the shape [patches, values
    of a patch].

    Args:
        folder: Hugging Face folder with the video processor.
        kind: Its class in `transformers.models`, as `module:name`.
        vision: The vision part of the configuration.
        limits: Take the place of the processor's own.

    Raises:
        ModelError: The processor's patches are not those of the model.
    """

    def __init__(self, folder: Path, kind: str, vision: Any, limits: VideoLimits) -> None:
        super().__init__(folder, kind, limits)
        check_patches(
            self._processor, vision, folder, "video processor (video_preprocessor_config.json"
        )
        self._patch: int = self._processor.patch_size
        self._merge: int = self._processor.merge_size
        side = self._patch * self._merge
        self.smallest = VideoHead(num_frames=self._frames, fps=1.0, height=side, width=side)
        self._table = self._table_of(folder, side, self._patch_shape)

    def num_tokens(self, grid: Grid) -> int:
        return math.prod(grid) // self._merge**2

    def pixel_shape(self, grid: Grid) -> tuple[int, ...]:
        return math.prod(grid), math.prod(self._patch_shape)

    def value_shape(self, grid: Grid) -> tuple[int, ...]:
        return math.prod(grid), *self._patch_shape

    @property
    def _patch_shape(self) -> tuple[int, ...]:
        return 3, self._frames, self._patch, self._patch

    def normalize(self, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return super().normalize(values, dtype).flatten(1)

    def read_inputs(
        self, inputs: Mapping[str, torch.Tensor]
    ) -> tuple[list[Grid], list[float], torch.Tensor]:
        grids: Any = required(inputs, "video_grid_thw").tolist()
        # Only that it is not 0 matters where the text has the times.
        seconds = inputs.get("second_per_grid_ts", torch.ones(len(grids)))
        pixels = required(inputs, "pixel_values_videos")
        return [tuple(grid) for grid in grids], seconds.tolist(), pixels

    def model_inputs(self, grids: Sequence[Grid], pixels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"pixel_values_videos": pixels, "video_grid_thw": torch.tensor(list(grids))}

    def _grid(self, processed: Any) -> Grid:
        frames, rows, columns = processed["video_grid_thw"][0].tolist()
        return frames, rows, columns

    def _frame_size(self, grid: Grid) -> tuple[int, int]:
        return grid[1] * self._patch, grid[2] * self._patch


class Qwen25VideoProcessor(QwenVideoProcessor):
    """All tokens of a video are one block.

    Args:
        folder: Hugging Face folder with the video processor.
        vision: The vision part of the configuration.
        limits: Take the place of the processor's own.
        placeholder: The token that stands for the tokens of a video.
    """

    def __init__(self, folder: Path, vision: Any, limits: VideoLimits, placeholder: str) -> None:
        kind = "qwen2_vl.video_processing_qwen2_vl:Qwen2VLVideoProcessor"
        super().__init__(folder, kind, vision, limits)
        self._placeholder = placeholder

    def read_inputs(
        self, inputs: Mapping[str, torch.Tensor]
    ) -> tuple[list[Grid], list[float], torch.Tensor]:
        required(inputs, "second_per_grid_ts")
        return super().read_inputs(inputs)

    def sample_inputs(
        self, grids: Sequence[Grid], seconds: Sequence[float], pixels: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        times = {"second_per_grid_ts": torch.tensor(seconds)}
        return super().sample_inputs(grids, seconds, pixels) | times

    def _text(self, metadata: VideoMetadata, grid: Grid) -> str:
        return self._placeholder


class Qwen3VideoProcessor(QwenVideoProcessor):
    """Each frame of the grid is a block of its own, with its time in front.

    Args:
        folder: Hugging Face folder with the video processor.
        vision: The vision part of the configuration.
        limits: Take the place of the processor's own.
        block: Text of a block, with the placeholder between the tokens for start and end.
    """

    def __init__(self, folder: Path, vision: Any, limits: VideoLimits, block: str) -> None:
        kind = "qwen3_vl.video_processing_qwen3_vl:Qwen3VLVideoProcessor"
        super().__init__(folder, kind, vision, limits)
        self._block = block

    def _text(self, metadata: VideoMetadata, grid: Grid) -> str:
        processor: Any = Qwen3VLProcessor
        times = processor._calculate_timestamps(
            None, list(metadata.frames_indices or ()), metadata.fps, self._frames
        )
        return "".join(f"<{time:.1f} seconds>{self._block}" for time in times[: grid[0]])
