"""Synthetic vision-language workloads, each drawn from an explicit seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
from numpy.random import Generator
from numpy.typing import NDArray

from flowtrain.workloads.documents import SETS, document_counts
from flowtrain.workloads.workload import (
    IntArray,
    Workload,
    decoder_flops,
    native_encoder_flops,
)

# Text tokens, visual tokens, images, encoder FLOPs.
Drawn = tuple[IntArray, IntArray, IntArray, NDArray[Any]]
Draw = Callable[[Generator, int], Drawn]

_TILE_TOKENS = 256
_TILE_FLOPS = 722e9  # InternViT-300M on one 448-pixel tile.
_PATCHES_PER_TOKEN = 4


def _lognormal(
    random: Generator, count: int, median: float, sigma: float, low: int, high: int
) -> IntArray:
    drawn = numpy.exp(random.normal(numpy.log(median), sigma, count))
    return numpy.clip(drawn, low, high).astype(numpy.int64)


def _native(random: Generator, count: int) -> tuple[IntArray, NDArray[Any]]:
    """Visual tokens and encoder FLOPs of images with lognormal area, 28 x 28 pixels per token."""
    tokens = _lognormal(random, count, 1000, 0.7, 64, 8192)
    return tokens, native_encoder_flops(tokens * _PATCHES_PER_TOKEN)


def _tiles(random: Generator, count: int) -> Drawn:
    """1 to 13 tiles of 256 tokens, 12 % without an image."""
    tiles = numpy.clip(random.geometric(0.22, count), 1, 13)
    tiles[random.random(count) < 0.12] = 0
    text = _lognormal(random, count, 180, 0.8, 8, 4096)
    return text, tiles * _TILE_TOKENS, tiles, tiles * _TILE_FLOPS


def _native_images(random: Generator, count: int) -> Drawn:
    """One image at its own resolution."""
    visual, flops = _native(random, count)
    text = _lognormal(random, count, 180, 0.8, 8, 4096)
    return text, visual, numpy.ones(count, numpy.int64), flops


def _video(random: Generator, count: int) -> Drawn:
    """Native images, and 5 % clips of 8 to 96 frame pairs with up to 256 tokens: up to 24k."""
    visual, flops = _native(random, count)
    clips = random.random(count) < 0.05
    frames = random.integers(8, 97, count)
    per_frame = random.integers(128, 257, count)
    visual = numpy.where(clips, frames * per_frame, visual)
    clip_flops = frames * native_encoder_flops(per_frame * _PATCHES_PER_TOKEN)
    return (
        _lognormal(random, count, 180, 0.8, 8, 4096),
        visual,
        numpy.where(clips, frames, 1),
        numpy.where(clips, clip_flops, flops),
    )


def _interleaved(random: Generator, count: int) -> Drawn:
    """Documents with 0 to 12 images between long text."""
    images = numpy.minimum(random.geometric(0.35, count) - 1, 12)
    each, flops = _native(random, int(images.sum()))
    owner = numpy.repeat(numpy.arange(count), images)
    visual = numpy.bincount(owner, weights=each, minlength=count).astype(numpy.int64)
    text = _lognormal(random, count, 700, 0.9, 32, 8192)
    return text, visual, images, numpy.bincount(owner, weights=flops, minlength=count)


def _long_tail(random: Generator, count: int) -> Drawn:
    """Mostly text, up to 32k tokens; 15 % with an image."""
    text = _lognormal(random, count, 900, 1.2, 16, 32768)
    visual, flops = _native(random, count)
    with_image = random.random(count) < 0.15
    visual = numpy.where(with_image, numpy.minimum(visual, 32768 - text), 0)
    images = numpy.where(visual > 0, 1, 0)
    return text, visual, images, numpy.where(visual > 0, flops, 0.0)


def _coarse(random: Generator, count: int) -> Drawn:
    """Five sizes only, as fixed templates produce."""
    tiles = random.choice(numpy.array([1, 2, 4, 6, 12]), count, p=[0.35, 0.25, 0.2, 0.12, 0.08])
    return numpy.full(count, 128), tiles * _TILE_TOKENS, tiles, tiles * _TILE_FLOPS


def _tight(random: Generator, count: int) -> Drawn:
    """Photographs of one size with a short question, like CocoQA."""
    visual = numpy.maximum(1, random.normal(1400, 70, count)).astype(numpy.int64)
    flops = native_encoder_flops(visual * _PATCHES_PER_TOKEN)
    text = _lognormal(random, count, 58, 0.35, 4, 1024)
    return text, visual, numpy.ones(count, numpy.int64), flops


def _charts(random: Generator, count: int) -> Drawn:
    """Synthetic charts with a heavy tail, like SynthChartNet."""
    visual = _lognormal(random, count, 1600, 0.95, 400, 8192)
    flops = native_encoder_flops(visual * _PATCHES_PER_TOKEN)
    text = _lognormal(random, count, 140, 0.5, 8, 2048)
    return text, visual, numpy.ones(count, numpy.int64), flops


def _documents(random: Generator, count: int) -> Drawn:
    """Four measured document sets, mixed in proportion to their sizes."""
    text, tiles = document_counts(random, count)
    return text, tiles * _TILE_TOKENS, tiles, tiles * _TILE_FLOPS


def _one_document_set(name: str) -> Draw:
    def draw(random: Generator, count: int) -> Drawn:
        text, tiles = document_counts(random, count, only=name)
        return text, tiles * _TILE_TOKENS, tiles, tiles * _TILE_FLOPS

    return draw


_PRESETS: dict[str, Draw] = {
    "tiles": _tiles,
    "native": _native_images,
    "video": _video,
    "interleaved": _interleaved,
    "longtail": _long_tail,
    "coarse": _coarse,
    "tight": _tight,
    "charts": _charts,
    "documents": _documents,
    **{name: _one_document_set(name) for name in SETS},
}

PRESETS = tuple(_PRESETS)


def preset(name: str, count: int, *, seed: int) -> Workload:
    """Draw the samples of a step.

    Args:
        name: One of PRESETS.
        count: Samples to draw, at least 0.
        seed: The same seed, name and count give the same samples.

    Raises:
        ValueError: The preset does not exist, or count or seed is negative.
    """
    if count < 0:
        raise ValueError(f"preset '{name}': count={count} must not be negative")
    if seed < 0:
        raise ValueError(f"preset '{name}': seed={seed} must not be negative")
    if name not in _PRESETS:
        raise ValueError(f"preset '{name}': choose from {', '.join(PRESETS)}")
    text, visual, images, flops = _PRESETS[name](numpy.random.default_rng(seed), count)
    tokens = (text + visual).astype(numpy.int64)
    return Workload(
        name=name,
        tokens=tokens,
        visual_tokens=visual.astype(numpy.int64),
        cost=decoder_flops(tokens),
        encoder_cost=flops.astype(numpy.float64),
        images=images.astype(numpy.int64),
    )
