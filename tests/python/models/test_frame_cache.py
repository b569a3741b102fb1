from __future__ import annotations

from collections.abc import Iterator

import torch

from flowtrain.models.frame_cache import FrameCache, Tensors


class Maker:
    """Makes one tensor of each image, a value for each patch, and counts what it made."""

    def __init__(self) -> None:
        self.made: list[list[int]] = []

    def __call__(self, sizes: torch.Tensor) -> Iterator[Tensors]:
        self.made += sizes.tolist()
        lengths = sizes.prod(1)
        together = (sizes[:, 1] * 100 + sizes[:, 2]).repeat_interleave(lengths)
        return ((each,) for each in together.split(lengths.tolist()))


def values(frames: list[Tensors]) -> list[list[int]]:
    return [tensor.tolist() for (tensor,) in frames]


def test_each_frame_has_the_tensors_of_its_size_whatever_came_before() -> None:
    cache, make = FrameCache(), Maker()
    cache([(1, 2, 4), (1, 4, 2)], make)
    found = cache([(1, 6, 2), (2, 4, 2), (1, 2, 2), (1, 6, 2), (1, 2, 4)], make)
    assert values(found) == [
        *([602] * 12, [402] * 8, [402] * 8, [202] * 4),
        *([602] * 12, [204] * 8),
    ]
    assert make.made == [[1, 2, 4], [1, 4, 2], [1, 6, 2], [1, 2, 2]]


def test_sizes_that_were_not_used_for_longest_are_dropped() -> None:
    cache, make = FrameCache(max_patches=20), Maker()
    cache([(1, 2, 4), (5, 4, 2)], make)
    cache([(1, 2, 4)], make)
    cache([(1, 2, 6)], make)
    make.made.clear()
    cache([(1, 2, 4), (1, 2, 6)], make)
    assert make.made == []
    assert values(cache([(1, 4, 2)], make)) == [[402] * 8]
    # One that is larger than the limit is made, and not kept.
    assert values(cache([(1, 5, 5)], make)) == [[505] * 25]
    make.made.clear()
    cache([(1, 5, 5)], make)
    assert make.made == [[1, 5, 5]]


def test_a_kept_tensor_does_not_keep_the_memory_of_others() -> None:
    frames = FrameCache()([(1, 2, 4), (1, 40, 40)], Maker())
    assert [t.untyped_storage().nbytes() for (t,) in frames] == [8 * 8, 1600 * 8]
