"""Video processors of the families with tiles: each frame is scaled to one tile."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

import torch

from flowtrain.cost.flops import Grid
from flowtrain.models.errors import ModelError
from flowtrain.models.video_processor import VideoProcessor
from flowtrain.models.videos import VideoHead, VideoLimits


class TileVideoProcessor(VideoProcessor):
    """Pixels have the shape [frames, 3, side, side], and the first number of a grid is the frames.

    Args:
        folder: Hugging Face folder with the video processor.
        kind: Its class in `transformers.models`, as `module:name`.
        limits: Take the place of the processor's own.
        side: Height and width of a tile in pixels.

    Raises:
        ModelError: Frames are not scaled to tiles of this size.
    """

    def __init__(self, folder: Path, kind: str, limits: VideoLimits, *, side: int) -> None:
        super().__init__(folder, kind, limits)
        self._side = side
        self.smallest = VideoHead(num_frames=1, fps=1.0, height=side, width=side)
        video = torch.empty((1, 3, side, 2 * side), dtype=torch.uint8, device="meta")
        found = tuple(self._values(self._process(video)).shape[1:])
        if found != (3, side, side) or self._processor.do_center_crop:
            raise ModelError(
                f"{folder}: the video processor makes {found} of a frame of {2 * side} x {side} "
                f"pixels, but the vision tower takes {(3, side, side)}, without a crop; restore "
                "the model's own video_preprocessor_config.json"
            )
        self._table = self._table_of(folder, side, (3, side, side))

    def pixel_shape(self, grid: Grid) -> tuple[int, ...]:
        return grid[0], 3, self._side, self._side

    def _values(self, processed: Any) -> torch.Tensor:
        return super()._values(processed)[0]

    def _grid(self, processed: Any) -> Grid:
        return self._grid_of_frames(len(self._values(processed)))

    def _frame_size(self, grid: Grid) -> tuple[int, int]:
        return self._side, self._side

    @abstractmethod
    def _grid_of_frames(self, frames: int) -> Grid:
        """Grid of a video with so many frames."""
