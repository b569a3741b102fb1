"""The interface of an image processor: from the pixels of an image to those that a model takes.

It has two steps: workers scale images to 8-bit values and send these; the rank that encodes them
makes the floats.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flowtrain.cost.flops import Grid
from flowtrain.models.errors import ModelError

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class PixelLimits:
    """Numbers of pixels between which images are scaled; None is the limit of the processor."""

    min_pixels: int | None = None
    max_pixels: int | None = None
    resized: tuple[int, int] | None = None
    """Height and width to which an image is scaled before the limits are applied."""

    def __bool__(self) -> bool:
        return self != NO_LIMITS


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
    def resize(self, image: Image, *, num_images: int) -> NDArray[np.uint8]:
        """Scale and cut an image: the 8-bit values of which `normalize` makes pixels.

        Args:
            image: The image, in RGB.
            num_images: Images of its sample.

        Returns:
            Values of shape `value_shape`, in the order of the pixels.

        Raises:
            ValueError: The processor does not take this image.
        """

    @abstractmethod
    def normalize(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        """Pixels of images as the model takes them, on the device of the values.

        Args:
            values: What `resize` returned for each image, joined in the first dimension.
            dtype: Dtype of the pixels; they are rounded to it from float32.
        """

    def limited(self, limits: PixelLimits) -> ImageProcessor:
        """The processor of a single image with limits of its own.

        Args:
            limits: Take the place of those of this processor.

        Raises:
            ModelError: It does not scale images by limits, or these exclude all images.
        """
        given = ", ".join(f"{name}={value}" for name, value in asdict(limits).items() if value)
        raise ModelError(
            f"{given}: the model's image processor does not scale images by limits; remove them, "
            "or ignore them by data.ignore"
        )

    @abstractmethod
    def pixel_shape(self, grid: Grid) -> tuple[int, ...]:
        """Shape of the pixels of an image with this grid."""

    def value_shape(self, grid: Grid) -> tuple[int, ...]:
        """Shape of the 8-bit values of an image with this grid: `[n, 3, ...]`."""
        return self.pixel_shape(grid)

    def read_inputs(self, inputs: Mapping[str, Tensor]) -> tuple[list[Grid], Tensor]:
        """Images of one sample, from the tensors that the Hugging Face processor returned for it.

        Args:
            inputs: The tensors of the sample, by name, with `pixel_values`.

        Returns:
            Grid of each image, and the pixels of all of them as `normalize` makes them, joined in
            the first dimension. A family that cannot separate its images returns one grid for all.

        Raises:
            ModelError: A tensor is missing, or the tensors are not those of this processor.
        """
        raise ModelError(
            f"{type(self).__name__}: it has no read_inputs and model_inputs, which packing of "
            "processed samples needs; define them as docs/families.md says"
        )

    def sample_inputs(self, grids: Sequence[Grid], pixels: Tensor) -> dict[str, Tensor]:
        """The tensors that the Hugging Face processor returns for the images of one sample.

        Args:
            grids: Grid of each image.
            pixels: Pixels of all of them, joined in the first dimension.
        """
        return self.model_inputs([grids], pixels)

    def model_inputs(self, grids: Sequence[Sequence[Grid]], pixels: Tensor) -> dict[str, Tensor]:
        """Tensors that the Hugging Face model takes for the images of a packed row.

        Args:
            grids: Grids of the images of each document that has images.
            pixels: Pixels of all of them, joined in the first dimension.
        """
        return {"pixel_values": pixels}


def required(inputs: Mapping[str, Tensor], name: str) -> Tensor:
    """A tensor that the Hugging Face processor returns.

    Raises:
        ModelError: There is none of this name.
    """
    if (found := inputs.get(name)) is None:
        raise ModelError(
            f"{name} is missing beside {', '.join(inputs)}; pass on all that the model's processor "
            "returns"
        )
    return found
