"""The interface of an image processor: from the pixels of an image to those that a model takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flowtrain.cost.flops import Grid

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, kw_only=True, slots=True)
class PixelLimits:
    """Numbers of pixels between which images are scaled; None is the limit of the processor."""

    min_pixels: int | None = None
    max_pixels: int | None = None

    def __bool__(self) -> bool:
        return self.min_pixels is not None or self.max_pixels is not None


NO_LIMITS = PixelLimits()


class ImageProcessor(ABC):
    """The image processor of a model.

    Attributes:
        smallest_size: Height and width of an image that stands for one that cannot be read.
    """

    smallest_size: tuple[int, int]

    @abstractmethod
    def grid(self, height: int, width: int, *, num_images: int) -> Grid:
        """Grid of an image.

        Args:
            height: Height of the image in pixels.
            width: Width of the image in pixels.
            num_images: Images of its sample.

        Raises:
            ValueError: The processor does not take images of this size.
        """

    @abstractmethod
    def num_tokens(self, grid: Grid) -> int:
        """Tokens of an image with this grid."""

    @abstractmethod
    def pixels(self, image: Image, *, num_images: int) -> NDArray[np.float32]:
        """Pixels of an image as the model takes them.

        Args:
            image: The image, in RGB.
            num_images: Images of its sample.

        Raises:
            ValueError: The processor does not take this image.
        """

    @abstractmethod
    def pixel_shape(self, grid: Grid) -> tuple[int, ...]:
        """Shape of the pixels of an image with this grid."""
