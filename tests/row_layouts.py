"""Random slabs, and the packed rows of them that plain torch gives."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from flowtrain.train.records.gather import DTYPES, pieces_of

PAIRS = [(slab, packed) for slab in DTYPES for packed in DTYPES]


@dataclass
class Layout:
    """Slabs in several memories, with gaps between them."""

    memories: list[torch.Tensor]
    pieces: torch.Tensor
    rows: int
    width: int

    def slabs(self) -> list[torch.Tensor]:
        """Views of the pieces, in the order of the packed rows."""
        return [
            self.memories[memory][offset : offset + rows * self.width].view(rows, self.width)
            for memory, offset, rows, first in sorted(self.pieces.tolist(), key=lambda p: p[3])
        ]


def draw(
    seed: int, dtype: torch.dtype, device: str = "cpu", most_rows: int = 40, slabs: int = 12
) -> Layout:
    """Slabs of 1 to 3 planes, at offsets and of widths that are seldom multiples of 16 bytes."""
    chosen = random.Random(seed)
    torch.manual_seed(seed)
    width = chosen.choice([1, 3, 8, 24, 31, 64, 65, 129])
    planes = chosen.randint(1, 3)
    sizes = [chosen.randint(0, 3)] + [chosen.randint(0, most_rows) for _ in range(slabs)]
    ends = [0, 0]
    memory, offsets = [], []
    for size in sizes:
        number = chosen.randrange(len(ends))
        offsets.append(ends[number] + chosen.choice([0, 0, 1, 7, 16]))
        memory.append(number)
        ends[number] = offsets[-1] + planes * size * width
    pieces = pieces_of(memory, offsets, sizes, width=width, planes=planes)
    if chosen.random() < 0.5:
        pieces = pieces[torch.randperm(len(pieces))]
    return Layout(
        memories=[torch.randn(end + 5, device=device).to(dtype) for end in ends],
        pieces=pieces,
        rows=planes * sum(sizes),
        width=width,
    )


def gathered(layout: Layout, dtype: torch.dtype) -> torch.Tensor:
    """What a gather must give."""
    return torch.cat(layout.slabs()).to(dtype)


def scattered(layout: Layout, packed: torch.Tensor) -> list[torch.Tensor]:
    """Memories as a scatter must leave them."""
    copies = [memory.clone() for memory in layout.memories]
    slabs = Layout(copies, layout.pieces, layout.rows, layout.width).slabs()
    for slab, rows in zip(slabs, packed.split([len(slab) for slab in slabs]), strict=True):
        slab.copy_(rows)
    return copies


def same_bits(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether two tensors are equal in dtype, shape and every bit."""
    return (
        mine.dtype == theirs.dtype
        and mine.shape == theirs.shape
        and torch.equal(mine.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))
    )
