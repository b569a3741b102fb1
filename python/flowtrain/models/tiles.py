"""Image processors whose output is tiles of one size, each of which the tower encodes alone."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from flowtrain.models.errors import ModelError
from flowtrain.models.images import ImageProcessor
from flowtrain.models.pixel_table import PixelTable, all_values, check_split, images_of

if TYPE_CHECKING:
    from PIL.Image import Image

# More than 256 pixels, for an image with all values of 8 bits.
_SIDE = 16


class TileProcessor(ImageProcessor):
    """Pixels have the shape [tiles, 3, side, side], and the first number of a grid is the tiles.

    Args:
        folder: Name of the model's folder, for messages.
        side: Height and width of the images that the tower takes, in pixels.

    Raises:
        ModelError: The tiles of the processor have another size, or their floats are no function of
            values of 8 bits.
    """

    def __init__(self, folder: str, *, side: int) -> None:
        from PIL import Image

        self._side = side
        self.smallest_size = (side, side)
        for width in (side, 2 * side):
            found = self._process(Image.new("RGB", (width, side)), num_images=1).shape[1:]
            if found != (3, side, side):
                raise ModelError(
                    f"{folder}: the image processor makes {found} of an image of {width} x {side} "
                    f"pixels, but the vision tower takes {(3, side, side)}; restore the model's "
                    "own preprocessor_config.json"
                )
        values = all_values(_SIDE)
        [image] = images_of(values)
        floats = self._process(image, num_images=2, do_resize=False, do_center_crop=False)
        self._table = PixelTable(values, torch.from_numpy(floats), folder)
        check_split(self, lambda image: self._process(image, num_images=1), folder)

    @abstractmethod
    def _process(self, image: Image, *, num_images: int, **options: Any) -> NDArray[Any]:
        """Pixels of an image, by the processor of transformers.

        Args:
            image: The image.
            num_images: Images of its sample.
            **options: Take the place of the processor's own.

        Returns:
            Its tiles, shape [tiles, 3, height, width].
        """

    def resize(self, image: Image, *, num_images: int) -> NDArray[np.uint8]:
        made = self._process(image, num_images=num_images, do_rescale=False, do_normalize=False)
        return made.astype(np.uint8, copy=False)

    def normalize(self, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return self._table(values, dtype)

    def pixel_shape(self, grid: tuple[int, int, int]) -> tuple[int, ...]:
        return grid[0], 3, self._side, self._side
