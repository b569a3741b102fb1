"""Sizes of small models."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TinyModel:
    """Sizes of a small model. The defaults give about 3 M parameters."""

    vision_width: int = 128
    vision_depth: int = 4
    vision_heads: int = 4
    taps: tuple[int, ...] = (1, 2)
    """Vision blocks whose output is a deepstack tap, in families that have such taps."""
    text_width: int = 192
    text_depth: int = 4
    text_heads: int = 6
    text_kv_heads: int = 2
    text_head_dim: int | None = None
    """Width of a head; None divides `text_width` by the heads."""
    text_intermediate: int = 512
    tied: bool = False
    """Whether input and output embeddings are one matrix, as in the released small models."""


SMALLEST = TinyModel(
    vision_width=32,
    vision_depth=3,
    vision_heads=2,
    taps=(0, 1),
    text_width=48,
    text_depth=3,
    text_heads=4,
    text_kv_heads=2,
    text_intermediate=96,
)
"""Has every feature (deepstack, grouped heads) and trains a step in milliseconds."""
