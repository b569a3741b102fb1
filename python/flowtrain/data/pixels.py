"""Images as the encoder takes them: grids from file headers, patches from the pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flowtrain.cost.flops import Grid
from flowtrain.data.errors import DataError
from flowtrain.data.images import read_upright, unusable, upright_size

if TYPE_CHECKING:
    from flowtrain.models.adapter import ImageProcessor


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplePixels:
    """Patches of one image on its planned grid, shape [patches, patch_dim]."""

    pixels: NDArray[np.float32]
    skipped: bool
    """Whether the patches are zeros, as the file cannot be used or has another grid now."""


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

    def grid(self, path: Path, where: str) -> Grid:
        """Grid of an image, from the header of its file.

        If the header cannot be used and bad images are skipped, the smallest grid.

        Raises:
            DataError: The header cannot be used, and bad images are an error.
        """
        try:
            height, width = upright_size(path, where)
            try:
                return self._processor.grid(height, width)
            except ValueError as error:
                raise unusable(path, where, error) from error
        except DataError:
            if not self._skip_bad:
                raise
        return self._processor.smallest_grid()

    def pixels(self, path: Path, where: str, grid: Grid) -> SamplePixels:
        """Patches of an image.

        Raises:
            DataError: The file cannot be used or no longer has the planned grid, and bad images
                are an error.
        """
        try:
            pixels, found = self._patches(path, where)
            if found != grid:
                raise DataError(
                    f"{where}: image {path}: its grid is {found}, but {grid} was planned: the file "
                    "changed during the run; continue with --resume, or set data.bad_image=skip"
                )
            return SamplePixels(pixels=pixels, skipped=False)
        except DataError:
            if not self._skip_bad:
                raise
        zeros = np.zeros((math.prod(grid), self._processor.patch_dim), dtype=np.float32)
        return SamplePixels(pixels=zeros, skipped=True)

    def _patches(self, path: Path, where: str) -> tuple[NDArray[np.float32], Grid]:
        image = read_upright(path, where)
        try:
            return self._processor.patches(image)
        except ValueError as error:
            raise unusable(path, where, error) from error
