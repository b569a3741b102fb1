"""Image processors whose output is tiles of one size, each of which the tower encodes alone."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flowtrain.models.errors import ModelError
from flowtrain.models.images import ImageProcessor

if TYPE_CHECKING:
    from PIL.Image import Image


class TileProcessor(ImageProcessor):
    """Pixels have the shape [tiles, 3, side, side], and the first number of a grid is the tiles.

    Args:
        folder: Name of the model's folder, for messages.
        side: Height and width of the images that the tower takes, in pixels.

    Raises:
        ModelError: The tiles of the processor have another size.
    """

    def __init__(self, folder: str, *, side: int) -> None:
        from PIL import Image

        self._side = side
        self.smallest_size = (side, side)
        for width in (side, 2 * side):
            found = self._tiles(Image.new("RGB", (width, side)), num_images=1).shape[1:]
            if found != (3, side, side):
                raise ModelError(
                    f"{folder}: the image processor makes {found} of an image of {width} x {side} "
                    f"pixels, but the vision tower takes {(3, side, side)}; restore the model's "
                    "own preprocessor_config.json"
                )

    @abstractmethod
    def _tiles(self, image: Image, *, num_images: int) -> NDArray[np.float32]:
        """Tiles of an image, shape [tiles, 3, height, width]."""

    def pixels(self, image: Image, *, num_images: int) -> NDArray[np.float32]:
        return self._tiles(image, num_images=num_images)

    def pixel_shape(self, grid: tuple[int, int, int]) -> tuple[int, ...]:
        return grid[0], 3, self._side, self._side
