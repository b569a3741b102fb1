"""The image processor of Qwen-VL models: patches of an image that is scaled to whole blocks."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoImageProcessor
from transformers.image_utils import SizeDict
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from flowtrain.cost.flops import Grid
from flowtrain.models.errors import ModelError
from flowtrain.models.images import ImageProcessor, PixelLimits, required
from flowtrain.models.pixel_table import PixelTable, all_values, check_split, images_of

if TYPE_CHECKING:
    from PIL.Image import Image


class QwenImageProcessor(ImageProcessor):
    """A grid is frames, height and width of an image in patches.

    Pixels have the shape [patches, values of a patch].

    Args:
        folder: Hugging Face folder with the image processor.
        vision: The vision part of the configuration.
        limits: Take the place of the processor's own.

    Raises:
        ModelError: The processor's patches are not those of the model, their floats are no function
            of values of 8 bits, or the limits exclude all images.
    """

    def __init__(self, folder: Path, vision: Any, limits: PixelLimits) -> None:
        self._folder = folder
        self._processor: Any = AutoImageProcessor.from_pretrained(folder)
        self._resized: tuple[int, int] | None = None
        check_patches(self._processor, vision, folder, "image processor (preprocessor_config.json")
        self._patch: int = self._processor.patch_size
        self._merge: int = self._processor.merge_size
        self._frames: int = self._processor.temporal_patch_size
        side = self._patch * self._merge
        self.smallest_size = (side, side)
        values = all_values(side)
        patches = np.concatenate([self._patches(image) for image in values.numpy()])
        floats = self._pixel_values(images_of(values), do_resize=False)
        first = floats.view(len(patches), 3, self._frames, self._patch, self._patch)[:, :, :1]
        self._table = PixelTable(torch.from_numpy(patches), first, str(folder))
        check_split(self, lambda image: self._pixel_values([image]), str(folder))
        if limits:
            self._limit(limits, "data.")

    def limited(self, limits: PixelLimits) -> QwenImageProcessor:
        other = copy.copy(self)
        other._limit(limits, "")
        return other

    def _limit(self, limits: PixelLimits, name: str) -> None:
        """Replace the limits; `name` is what messages write in front of them."""
        if not self._processor.do_resize:
            raise ModelError(
                f"{name}min_pixels={limits.min_pixels}, {name}max_pixels={limits.max_pixels}: the "
                f"image processor of {self._folder} does not scale images (do_resize is false); "
                "remove the limits, or let it scale"
            )
        own = self._processor.size
        least = own["shortest_edge"] if limits.min_pixels is None else limits.min_pixels
        most = own["longest_edge"] if limits.max_pixels is None else limits.max_pixels
        if least > most:
            raise ModelError(
                f"{name}min_pixels={least} is more than {name}max_pixels={most} (where none is "
                "given, the limit of the run or of the model's processor); lower the one or raise "
                "the other"
            )
        self._processor = copy.copy(self._processor)
        self._processor.size = SizeDict(shortest_edge=least, longest_edge=most)
        self._resized = limits.resized

    def grid(self, height: int, width: int, *, num_images: int) -> Grid:
        height, width = self._resized or (height, width)
        if self._processor.do_resize:
            height, width = smart_resize(
                height,
                width,
                factor=self._patch * self._merge,
                min_pixels=self._processor.size["shortest_edge"],
                max_pixels=self._processor.size["longest_edge"],
            )
        return 1, height // self._patch, width // self._patch

    def num_tokens(self, grid: Grid) -> int:
        return math.prod(grid) // self._merge**2

    def resize(self, image: Image, *, num_images: int) -> NDArray[np.uint8]:
        processor = self._processor
        given = image if self._resized is None else self._scaled(image)
        scaled = processor.process_image(given, do_convert_rgb=processor.do_convert_rgb)
        if processor.do_resize:
            factor = self._patch * self._merge
            scaled = processor.resize(scaled, processor.size, processor.resample, factor)
        return self._patches(np.asarray(scaled, dtype=np.uint8))

    def normalize(self, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        # A patch spans several frames, and an image is the same in all of them.
        shape = len(values), 3, self._frames, self._patch, self._patch
        return self._table(values, dtype, shape).flatten(1)

    def _patches(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Patches in the order of the blocks, shape [patches, 3, 1, height, width].

        Args:
            image: Shape [3, height, width].
        """
        merge, patch = self._merge, self._patch
        _, height, width = image.shape
        blocks = image.reshape(
            *(3, height // patch // merge, merge, patch),
            *(width // patch // merge, merge, patch),
        )
        return blocks.transpose(1, 4, 2, 5, 0, 3, 6).reshape(-1, 3, 1, patch, patch)

    def _pixel_values(self, images: Sequence[Image], **options: Any) -> torch.Tensor:
        """Pixels of images, by the processor of transformers."""
        made = self._processor(images=list(images), return_tensors="pt", **options)
        values: torch.Tensor = made["pixel_values"]
        return values

    def _scaled(self, image: Image) -> Image:
        """The image in the size of its grid, to which the processor would not distort it."""
        _, rows, columns = self.grid(image.height, image.width, num_images=1)
        size = columns * self._patch, rows * self._patch
        return image.resize(size, self._processor.resample)

    def pixel_shape(self, grid: Grid) -> tuple[int, ...]:
        return math.prod(grid), 3 * self._frames * self._patch**2

    def value_shape(self, grid: Grid) -> tuple[int, ...]:
        return math.prod(grid), 3, 1, self._patch, self._patch

    def read_inputs(self, inputs: Mapping[str, torch.Tensor]) -> tuple[list[Grid], torch.Tensor]:
        grids: Any = required(inputs, "image_grid_thw").tolist()
        return [tuple(grid) for grid in grids], required(inputs, "pixel_values")

    def model_inputs(
        self, grids: Sequence[Sequence[Grid]], pixels: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        return {"pixel_values": pixels, "image_grid_thw": torch.tensor(list(chain(*grids)))}


def check_patches(processor: Any, vision: Any, folder: Path, name: str) -> None:
    """Refuse a processor whose patches are not those of the model.

    Args:
        processor: The image or video processor.
        vision: The vision part of the configuration.
        folder: Its Hugging Face folder.
        name: Name of the processor and, in a bracket that stays open, of its file.

    Raises:
        ModelError: A size differs.
    """
    for key in ("patch_size", "temporal_patch_size", "merge_size"):
        of_model = "spatial_merge_size" if key == "merge_size" else key
        size, needed = getattr(processor, key), getattr(vision, of_model)
        if size != needed:
            raise ModelError(
                f"{folder}: {key}={size} of the {name}, or processor_config.json) is not "
                f"vision_config.{of_model}={needed} of config.json; restore the model's own files"
            )
