"""Tensors that a tower takes beside pixels, and that depend on the size of an image alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from flowtrain.cost.flops import Grid

Tensors = tuple[torch.Tensor, ...]

# With 64 bytes a patch, as Qwen3-VL has, 32 MiB: 500 images of 256 tokens each.
_MAX_PATCHES = 1 << 19


class FrameCache:
    """Tensors of a frame of each size, on the host; those that were used last are kept.

    Args:
        max_patches: Maximum patches of the frames that are kept, and so a bound of their memory.
    """

    def __init__(self, max_patches: int = _MAX_PATCHES) -> None:
        self._max_patches = max_patches
        # In the order of their last use.
        self._kept: dict[tuple[int, int], Tensors] = {}

    def __call__(
        self, grids: Sequence[Grid], make: Callable[[torch.Tensor], Iterable[Tensors]]
    ) -> list[Tensors]:
        """Tensors of each frame of each grid, which nobody may change.

        Args:
            grids: Frames, height and width of each image or video.
            make: Returns the tensors of images of one frame, whose grids it is given as a tensor of
                shape [images, 3]. All calls must make the same for the same grid.
        """
        sizes = [(rows, columns) for _, rows, columns in grids]
        found: dict[tuple[int, int], Tensors] = {}
        for size in sizes:
            if size in self._kept:
                found[size] = self._kept.pop(size)
        missing = [size for size in dict.fromkeys(sizes) if size not in found]
        if missing:
            made = make(torch.tensor([(1, *size) for size in missing]))
            # Copies, since a view would keep the memory of all that was made with it.
            copies = [tuple(tensor.clone() for tensor in tensors) for tensors in made]
            found.update(zip(missing, copies, strict=True))
        self._kept.update(found)
        if missing:
            self._drop_oldest()
        return [
            found[size]
            for (frames, *_), size in zip(grids, sizes, strict=True)
            for _ in range(frames)
        ]

    def _drop_oldest(self) -> None:
        patches = sum(rows * columns for rows, columns in self._kept)
        while patches > self._max_patches:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            patches -= oldest[0] * oldest[1]
