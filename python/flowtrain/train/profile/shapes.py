"""Shapes of rows and of images that are measured, and their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flowtrain.cost.flops import Grid
from flowtrain.cost.layers import Counts
from flowtrain.data.text import COMPACT, CompactText
from flowtrain.models.family import Family
from flowtrain.models.images import ImageProcessor
from flowtrain.steps import Document


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageSize:
    """An image that the processor makes.

    Attributes:
        grid: Its grid.
        tokens: Its tokens in the decoder.
        counts: What it has of the units of the tower.
    """

    grid: Grid
    tokens: int
    counts: Counts

    @property
    def frames(self) -> list[int]:
        """Tokens of each document of the tower."""
        length = round(self.counts.vision_pairs / self.counts.vision_tokens)
        return [length] * round(self.counts.vision_tokens / length)


def image_sizes(family: Family, processor: ImageProcessor, *, max_tokens: int) -> list[ImageSize]:
    """Square images by their size in the tower, each about a quarter larger than the one before.

    Args:
        family: Family of the model.
        processor: Its image processor.
        max_tokens: Maximum tokens of an image in the decoder.
    """
    side = float(min(processor.smallest_size))
    found: dict[float, ImageSize] = {}
    while True:
        pixels = round(side)
        grid = processor.grid(pixels, pixels, num_images=1)
        tokens = processor.num_tokens(grid)
        if tokens > max_tokens or pixels > _LARGEST_SIDE:
            break
        counts = family.counts(0, [grid], num_targets=0)
        found.setdefault(counts.vision_tokens, ImageSize(grid=grid, tokens=tokens, counts=counts))
        side = max(side * _SIDE_STEP, side + 1)
    return [found[size] for size in sorted(found)]


_SIDE_STEP = 1.125
_LARGEST_SIDE = 1 << 13


@dataclass(frozen=True, kw_only=True, slots=True)
class RowShape:
    """Documents of a microbatch.

    Attributes:
        count: Documents.
        length: Tokens of each.
        image: Image at the start of each; None for text alone.
        targets: One token in so many is a target.
        mixed: Whether every second document has a token more, so that no two in a row are equal.
    """

    count: int
    length: int
    image: ImageSize | None = None
    targets: int = 4
    mixed: bool = False

    @property
    def name(self) -> str:
        image = f", image of {self.image.tokens}" if self.image else ""
        mixed = " and one more" if self.mixed else ""
        return f"row: {self.count} x {self.length}{mixed} tokens{image}, 1/{self.targets} targets"

    @property
    def lengths(self) -> list[int]:
        """Tokens of each document."""
        return [self.length + (self.mixed and i % 2) for i in range(self.count)]

    @property
    def grids(self) -> list[Grid]:
        """Grids of the images."""
        return [self.image.grid] * self.count if self.image else []

    def counts(self, family: Family) -> Counts:
        """Units of the row."""
        images = self.count * self.image.tokens if self.image else 0
        lengths = self.lengths
        return Counts(
            tokens=sum(lengths),
            pairs=sum(n**2 for n in lengths) / 2,
            targets=self.num_targets,
            projected=images,
        )

    @property
    def num_targets(self) -> int:
        """Target tokens."""
        return max(1, sum(self.lengths) // self.targets)

    def inputs(self, family: Family) -> tuple[list[Document], CompactText]:
        """Documents of a plan, and their tokens.

        Targets are at the end of the row, as their places do not change the work.
        """
        documents, texts = [], []
        for number, length in enumerate(self.lengths):
            image = self.image.tokens if self.image else 0
            documents.append(
                Document(
                    sample=number,
                    num_tokens=length,
                    num_targets=0,
                    image_tokens=image,
                    grids=tuple(self.grids[:1]),
                )
            )
            text = np.zeros(length - image + bool(image), dtype=COMPACT)
            text["id"], text["count"] = _text_id(family), 1
            if image:
                text[0] = (family.image_id, image, False, 1)
            texts.append(text)
        joined = np.concatenate(texts)
        # The first token of a document is predicted by none.
        first = np.cumsum([0, *map(len, texts)])[:-1]
        free = np.setdiff1d(np.flatnonzero(joined["kind"] == 0), first)
        joined["is_target"][free[len(free) - min(self.num_targets, len(free)) :]] = True
        return documents, joined


def _text_id(family: Family) -> int:
    """A token id that stands for no image."""
    return next(i for i in range(3) if i not in (family.image_id, family.video_id))


@dataclass(frozen=True, kw_only=True, slots=True)
class ImagesShape:
    """Images of a call of the encoder.

    Attributes:
        count: Images.
        image: Each of them.
        other: Every second one instead, so that no two in a row are equal.
    """

    count: int
    image: ImageSize
    other: ImageSize | None = None

    @property
    def name(self) -> str:
        other = f" and {self.other.grid}" if self.other else ""
        return f"images: {self.count} x {self.image.grid}{other}"

    @property
    def images(self) -> list[ImageSize]:
        """The images."""
        other = self.other or self.image
        return [(self.image, other)[i % 2] for i in range(self.count)]

    @property
    def grids(self) -> list[Grid]:
        """Grids of the images."""
        return [image.grid for image in self.images]

    def counts(self, family: Family) -> Counts:
        """Units of the images."""
        return Counts(*map(sum, zip(*(image.counts for image in self.images), strict=True)))

    @property
    def lengths(self) -> list[int]:
        """Tokens of each document of the tower."""
        return [length for image in self.images for length in image.frames]


Shape = RowShape | ImagesShape


def spaced(smallest: int, largest: int, factor: float) -> list[int]:
    """Numbers from the smallest to the largest, each about `factor` times the one before."""
    found = [smallest]
    while found[-1] * factor < largest:
        found.append(round(found[-1] * factor))
    return found if found[-1] == largest else [*found, largest]


def nearest(images: Sequence[ImageSize], size: float) -> ImageSize:
    """The image whose size in the tower is the nearest."""
    return min(images, key=lambda image: abs(np.log(image.counts.vision_tokens / size)))
