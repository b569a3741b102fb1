"""From the 8-bit values of images and videos, as data workers send them, to pixels of a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flowtrain.cost.flops import Grid
from flowtrain.data.files import IMAGE, Visual

if TYPE_CHECKING:
    import torch

    from flowtrain.models.family import Family
    from flowtrain.models.images import ImageProcessor
    from flowtrain.models.video_processor import VideoProcessor


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplePixels:
    """One image or video on its planned grid.

    It has 8-bit values, or, if the samples of the data set are outputs of a processor, the floats
    that this has made.
    """

    values: NDArray[np.uint8] | NDArray[np.float32] | None
    """As `resize` of the family's processor returns them, or as its `normalize` does; None if the
    file cannot be used or has another grid now: its pixels are zeros."""
    kind: Visual
    key: bytes | None = None
    """Key of its features in a cache that lacks them; None if they are not to be stored."""
    read_s: float = 0.0
    """Seconds to read and decode it, if it has a key."""

    @property
    def skipped(self) -> bool:
        """Whether the file cannot be used."""
        return self.values is None

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """Dtype of the values, if there are any."""
        return None if self.values is None else self.values.dtype


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Features of one image or video, from a cache."""

    rows: NDArray[np.uint8]
    """Bytes of its rows, as they cross the pool."""
    read_s: float
    """Seconds to find and read them, the digest of the file included."""
    skipped: ClassVar[bool] = False


class PixelMaker:
    """Makes the pixels that a model takes of the 8-bit values of images and videos.

    Args:
        family: The model's family, whose processors normalize.
    """

    def __init__(self, family: Family) -> None:
        self._family = family

    @cached_property
    def images(self) -> ImageProcessor:
        """The image processor, made when it is first used."""
        return self._family.image_processor()

    @cached_property
    def videos(self) -> VideoProcessor:
        """The video processor, made when it is first used."""
        return self._family.video_processor()

    def __call__(
        self,
        visuals: Sequence[SamplePixels],
        grids: Sequence[Grid],
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> torch.Tensor:
        """Pixels of images and videos, joined in the first dimension.

        Args:
            visuals: What a reader returned for each of them, at least one.
            grids: The planned grid of each.
            dtype: Dtype of the pixels.
            device: Their device; the values are sent there, and are normalized there.
        """
        import torch

        from flowtrain.models.send import send_joined

        parts = []
        pairs = zip(visuals, grids, strict=True)
        for (kind, held), group in groupby(pairs, lambda pair: (pair[0].kind, pair[0].dtype)):
            processor = self.images if kind is IMAGE else self.videos
            some = list(group)
            if held is None:
                shapes = [processor.pixel_shape(grid) for _, grid in some]
                parts += [torch.zeros(shape, dtype=dtype, device=device) for shape in shapes]
                continue
            sent = send_joined([torch.from_numpy(each.values) for each, _ in some], device)
            is_made = sent.is_floating_point()
            parts.append(sent.to(dtype) if is_made else processor.normalize(sent, dtype))
        return parts[0] if len(parts) == 1 else torch.cat(parts)
