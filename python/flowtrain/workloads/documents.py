"""Four measured document sets: tiles and text tokens of 70,706 samples.

From the length files published with OmniBal's code (448-pixel tiles of 256 tokens, at most four and
a thumbnail). Tiles are drawn from the histogram and text lengths from the quantiles, independently:
their correlation within a set is between -0.22 and 0.07.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy
from numpy.random import Generator

from flowtrain.workloads.workload import IntArray


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentSet:
    """Histogram of tiles, and text tokens at the quantiles of `_QUANTILES`."""

    tiles: dict[int, int]
    text: tuple[int, ...]

    @property
    def samples(self) -> int:
        return sum(self.tiles.values())


_QUANTILES = (0.0, 0.05, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 1.0)
SETS = {
    "ai2d": DocumentSet(
        tiles={1: 5793, 3: 3710, 4: 603, 5: 2307},
        text=(36, 41, 47, 52, 58, 67, 75, 99, 221),
    ),
    "chartqa": DocumentSet(
        tiles={1: 579, 3: 1096, 4: 14, 5: 16628},
        text=(36, 39, 43, 66, 119, 170, 218, 321, 552),
    ),
    "docvqa": DocumentSet(
        tiles={1: 15, 3: 1895, 4: 35, 5: 8266},
        text=(40, 66, 135, 231, 378, 577, 697, 866, 1258),
    ),
    "synthdog": DocumentSet(
        tiles={3: 17276, 5: 12489},
        text=(40, 61, 84, 110, 146, 187, 216, 278, 400),
    ),
}


def document_counts(
    random: Generator, count: int, *, only: str | None = None
) -> tuple[IntArray, IntArray]:
    """Draw text tokens and tiles of `count` samples, of one set or of all in proportion to size.

    The tails of the text distributions were not published; they are chosen to match the mean.
    """
    names = [only] if only else list(SETS)
    sizes = numpy.array([SETS[name].samples for name in names], dtype=numpy.float64)
    which = random.choice(len(names), count, p=sizes / sizes.sum())
    text = numpy.zeros(count, dtype=numpy.int64)
    tiles = numpy.zeros(count, dtype=numpy.int64)
    for number, name in enumerate(names):
        mine = numpy.flatnonzero(which == number)
        known = SETS[name]
        weights = numpy.array(list(known.tiles.values()), dtype=numpy.float64)
        tiles[mine] = random.choice(
            numpy.array(list(known.tiles)), len(mine), p=weights / weights.sum()
        )
        text[mine] = numpy.interp(random.random(len(mine)), _QUANTILES, known.text)
    return text, tiles
