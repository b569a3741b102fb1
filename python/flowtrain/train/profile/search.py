"""Which shapes are measured: a coarse grid, and shapes between where interpolation is wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from flowtrain.train.profile.shapes import ImageSize, ImagesShape, RowShape, Shape, nearest, spaced

_FACTOR = 4.0
"""Quotient of neighbouring sizes of the coarse grid."""
_SMALLEST = 8
_NARROW = 1.3
"""No shape is put between two whose sizes differ by less than this factor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Range of the sizes.

    Attributes:
        row_tokens: Maximum tokens of a row, and of a document.
        call_rows: Maximum image rows of a call of the encoder.
    """

    row_tokens: int
    call_rows: int


Edge = tuple[Shape, Shape]
"""Two shapes that differ in one size, and between which another is interpolated."""


class Grid:
    """The coarse grid of rows and of images.

    Args:
        images: Sizes of images, ascending.
        limits: Range of the sizes.
        joins: Whether documents of different lengths are separate calls of the attention.
    """

    def __init__(self, images: Sequence[ImageSize], limits: Limits, *, joins: bool) -> None:
        self._images = images
        self._limits = limits
        self._joins = joins

    def shapes(self) -> list[Shape]:
        """Its shapes, in the order in which they are measured."""
        lines = [*self._row_lines(), *self._image_lines()]
        return list(dict.fromkeys([*(s for line in lines for s in line), *self._others()]))

    def typical(self) -> tuple[ImagesShape, RowShape]:
        """Shapes of half the maximum size."""
        image = self._images[len(self._images) // 2]
        length = min(64, self._limits.row_tokens)
        return (
            ImagesShape(count=max(1, self._limits.call_rows // image.tokens // 2), image=image),
            self._row(max(1, self._limits.row_tokens // length // 2), length),
        )

    def edges(self) -> list[Edge]:
        """Neighbours in the number of documents, and in their length."""
        found: list[Edge] = []
        for lines in (list(self._row_lines()), list(self._image_lines())):
            for line in lines:
                found += pairwise(line)
            for line, longer in pairwise(lines):
                found.append((line[0], longer[0]))
        return found

    def between(self, edge: Edge) -> Shape | None:
        """The shape in the middle of two; None if there is none that differs enough."""
        one, other = edge
        found: Shape
        sizes: list[float]
        if isinstance(one, RowShape) and isinstance(other, RowShape):
            if one.length != other.length:
                row = self._row(1, _middle(one.length, other.length))
                found, sizes = row, [shape.length for shape in (one, row, other)]
            else:
                row = self._row(_middle(one.count, other.count), one.length)
                found, sizes = row, [shape.count for shape in (one, row, other)]
        else:
            assert isinstance(one, ImagesShape) and isinstance(other, ImagesShape)
            if one.image != other.image:
                tokens = [shape.image.counts.vision_tokens for shape in (one, other)]
                image = nearest(self._images, math.sqrt(math.prod(tokens)))
                found = ImagesShape(count=1, image=image)
                sizes = [tokens[0], image.counts.vision_tokens, tokens[1]]
            else:
                found = ImagesShape(count=_middle(one.count, other.count), image=one.image)
                sizes = [shape.count for shape in (one, found, other)]
        gaps = [large / small for small, large in pairwise(sizes)]
        return found if min(gaps) >= math.sqrt(_NARROW) else None

    def _row(self, count: int, length: int) -> RowShape:
        """Documents, half of whose tokens are those of an image if there is one so small."""
        fitting = [image for image in self._images if image.tokens <= length // 2]
        return RowShape(count=count, length=length, image=fitting[-1] if fitting else None)

    def _row_lines(self) -> Iterator[list[Shape]]:
        most = self._limits.row_tokens
        for length in spaced(_SMALLEST, most, _FACTOR):
            yield [self._row(count, length) for count in spaced(1, most // length, _FACTOR)]

    def _image_lines(self) -> Iterator[list[Shape]]:
        most = self._limits.call_rows
        sizes = [image.counts.vision_tokens for image in self._images]
        chosen = [nearest(self._images, s) for s in spaced(round(sizes[0]), round(sizes[-1]), 4.0)]
        for image in dict.fromkeys(chosen):
            counts = spaced(1, max(1, most // image.tokens), _FACTOR)
            yield [ImagesShape(count=count, image=image) for count in counts]

    def _others(self) -> Iterator[Shape]:
        """Rows of text, other shares of targets, and documents of several lengths."""
        most = self._limits.row_tokens
        length = min(64, most)
        for tokens in spaced(length, most, _FACTOR):
            plain = RowShape(count=tokens // length, length=length)
            yield plain
            yield replace(plain, targets=1)
            yield replace(plain, targets=64)
        yield RowShape(count=1, length=_SMALLEST)
        if not self._joins:
            return
        for length in spaced(_SMALLEST, max(_SMALLEST, min(512, most // 2)), 8.0):
            for count in spaced(2, max(2, most // (length + 1)), 8.0):
                yield replace(self._row(count, length), mixed=True)
        for at in range(0, len(self._images) - 1, max(1, len(self._images) // 4)):
            image, other = self._images[at : at + 2]
            if image.frames[0] == other.frames[0]:
                continue
            for count in spaced(2, max(2, self._limits.call_rows // other.tokens), 8.0):
                yield ImagesShape(count=count, image=image, other=other)


def _middle(one: int, other: int) -> int:
    return round(math.sqrt(one * other))
