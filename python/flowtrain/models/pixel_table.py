"""From the 8-bit values of images to the floats that a model takes, by a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flowtrain.models.errors import ModelError

if TYPE_CHECKING:
    from PIL.Image import Image

    from flowtrain.models.images import ImageProcessor

_LEVELS = 256
# Values of which a host makes floats at once: their places stay in the caches of the core.
_BLOCK = 1 << 18


class PixelTable:
    """The float that a processor makes of each 8-bit value of each channel.

    After scaling and cutting, a processor rescales and normalizes each value by itself. What it
    makes of all 256 values therefore gives its floats to the last bit.

    Args:
        values: 8-bit values, shape [n, channels, ...], in which each channel has all 256.
        floats: What the processor makes of them, in the same shape.
        folder: Folder of the processor, for messages.

    Raises:
        ModelError: Floats are missing, or a value has two.
    """

    def __init__(self, values: torch.Tensor, floats: torch.Tensor, folder: str) -> None:
        channels = values.shape[1]
        table = torch.full((channels, _LEVELS), torch.nan)
        for channel in range(channels):
            table[channel, values[:, channel].long()] = floats[:, channel].float()
        # Where the floats of each channel begin; indices of 32 bits are read fastest.
        self._begins = torch.arange(channels, dtype=torch.int32) * _LEVELS
        self._table = table.flatten()
        self._copies: dict[tuple[torch.device, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}
        is_whole = not self._table.isnan().any()
        if not is_whole or not torch.equal(self(values, torch.float32), floats.float()):
            raise not_split(folder)

    def __call__(
        self, values: torch.Tensor, dtype: torch.dtype, shape: Sequence[int] | None = None
    ) -> torch.Tensor:
        """Floats of values, on their device.

        Args:
            values: 8-bit values, shape [n, channels, ...].
            dtype: Dtype of the floats; they are rounded to it from float32.
            shape: Shape to which the floats are repeated; by default that of the values.
        """
        begins, table = self._on(values.device, dtype)
        begins = begins.view(-1, *(1 for _ in values.shape[2:]))
        floats = torch.empty(shape or values.shape, dtype=dtype, device=values.device)
        on_host = values.device.type == "cpu"
        rows = max(1, _BLOCK // values[0].numel()) if on_host else len(values)
        for some, made in zip(values.split(rows), floats.split(rows), strict=True):
            places = some.int().add_(begins)
            made.copy_(table.index_select(0, places.flatten()).view(some.shape))
        return floats

    def _on(self, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Begins and floats on a device, where they are copied once: the host waits for a copy."""
        if (device, dtype) not in self._copies:
            self._copies[device, dtype] = self._begins.to(device), self._table.to(device, dtype)
        return self._copies[device, dtype]


def all_values(side: int) -> torch.Tensor:
    """8-bit images in which each channel has all 256 values, shape [n, 3, side, side].

    Args:
        side: Height and width in pixels.
    """
    number = -(-_LEVELS // side**2)
    values = torch.arange(number * side**2, dtype=torch.int32).view(number, 1, side, side)
    # The channels differ, so that none is taken for another.
    shifts = torch.tensor([0, 85, 170], dtype=torch.int32).view(3, 1, 1)
    return ((values + shifts) % _LEVELS).byte()


def images_of(values: torch.Tensor) -> list[Image]:
    """Images of values of shape [n, 3, height, width]."""
    from PIL import Image

    return [Image.fromarray(each.permute(1, 2, 0).numpy()) for each in values]


def check_split(processor: ImageProcessor, whole: Callable[[Image], Any], folder: str) -> None:
    """Refuse a processor whose two steps do not make what transformers makes in one.

    Args:
        processor: The processor.
        whole: Returns the pixels of an image, by the processor of transformers.
        folder: Its folder, for messages.

    Raises:
        ModelError: The pixels of an image of noise differ.
    """
    height, width = processor.smallest_size
    noise = np.random.default_rng(0).integers(0, 256, (1, 3, height, 2 * width))
    [image] = images_of(torch.from_numpy(noise.astype(np.uint8)))
    values = torch.from_numpy(processor.resize(image, num_images=1))
    if not torch.equal(processor.normalize(values, torch.float32), torch.as_tensor(whole(image))):
        raise not_split(folder)


def not_split(folder: str) -> ModelError:
    """The error of a processor whose floats are no function of values of 8 bits."""
    return ModelError(
        f"{folder}: the floats that the image or video processor makes do not follow from scaled "
        "8-bit values, channel by channel; restore the model's own files of the processor"
    )
