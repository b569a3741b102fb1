"""Images as the encoder takes them: grids from file headers, and pixels from the files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flowtrain.cost.flops import Grid
from flowtrain.data.conversation import Conversation
from flowtrain.data.errors import DataError
from flowtrain.data.images import read_upright, unusable, upright_size

if TYPE_CHECKING:
    from flowtrain.models.images import ImageProcessor


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplePixels:
    """One image on its planned grid, in the shape that its family takes."""

    pixels: NDArray[np.float32]
    skipped: bool
    """Whether the pixels are zeros, as the file cannot be used or has another grid now."""


class ImageReader:
    """Reads image files for a model.

    Args:
        processor: The model's image processor.
        skip_bad: Whether an image that cannot be used becomes zeros; otherwise it is an error.
    """

    def __init__(self, processor: ImageProcessor, *, skip_bad: bool) -> None:
        self._processor = processor
        self._skip_bad = skip_bad

    def num_tokens(self, grid: Grid) -> int:
        """Tokens of an image with this grid."""
        return self._processor.num_tokens(grid)

    def grids(self, conversation: Conversation) -> tuple[Grid, ...]:
        """Grids of the images of a sample, from the headers of their files.

        If a header cannot be used and bad images are skipped, the smallest image stands for it.

        Raises:
            DataError: A header cannot be used, and bad images are an error.
        """
        return tuple(self._grid(conversation, path) for path in conversation.images)

    def _grid(self, conversation: Conversation, path: Path) -> Grid:
        number, where = len(conversation.images), conversation.where
        try:
            height, width = upright_size(path, where)
            try:
                return self._processor.grid(height, width, num_images=number)
            except ValueError as error:
                raise unusable(path, where, error) from error
        except DataError:
            if not self._skip_bad:
                raise
        return self._processor.grid(*self._processor.smallest_size, num_images=number)

    def pixels(self, conversation: Conversation, image: int, grid: Grid) -> SamplePixels:
        """Pixels of an image.

        Args:
            conversation: Its sample.
            image: Number of the image within the sample.
            grid: Its planned grid.

        Raises:
            DataError: The file cannot be used or no longer has the planned grid, and bad images
                are an error.
        """
        path, where = conversation.images[image], conversation.where
        number = len(conversation.images)
        try:
            upright = read_upright(path, where)
            try:
                found = self._processor.grid(upright.height, upright.width, num_images=number)
                pixels = self._processor.pixels(upright, num_images=number)
            except ValueError as error:
                raise unusable(path, where, error) from error
            if found != grid:
                raise DataError(
                    f"{where}: image {path}: its grid is {found}, but {grid} was planned: the file "
                    "changed during the run; continue with --resume, or set data.bad_image=skip"
                )
        except DataError:
            if not self._skip_bad:
                raise
            zeros = np.zeros(self._processor.pixel_shape(grid), dtype=np.float32)
            return SamplePixels(pixels=zeros, skipped=True)
        needed = self._processor.pixel_shape(grid)
        if pixels.shape != needed:
            raise DataError(
                f"{where}: image {path}: the model's image processor made {pixels.shape} where its "
                f"size of {upright.height} x {upright.width} pixels gives {needed}; use the "
                "processor that belongs to the model"
            )
        return SamplePixels(pixels=pixels, skipped=False)
