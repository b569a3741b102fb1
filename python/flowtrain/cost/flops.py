"""Analytic FLOPs of one sample by module, from the shapes alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ModuleFlops:
    """Forward FLOPs (a multiply-add is two) of one sample.

    Attributes:
        encoder: Patch embedding and vision blocks.
        projector: Merger and deepstack mergers.
        backbone: Decoder and output head.
    """

    encoder: float
    projector: float
    backbone: float


def sample_flops(
    config: Any, num_tokens: int, grids: Sequence[Grid], *, num_targets: int
) -> ModuleFlops:
    """Forward FLOPs of a sample: matrix products only, as usual for MFU.

    Attention of the decoder is causal and counted half; that of the vision tower is over each
    frame of each image. The output head runs on target tokens alone, which is what is computed.

    Args:
        config: Hugging Face configuration of a Qwen3-VL-like model.
        num_tokens: Tokens of the sample, image tokens included.
        grids: Temporal, height and width of each image in patches.
        num_targets: Target tokens.

    Source: the sums of Megatron-Bridge's `flop_utils.py`, for Qwen3-VL.
    """
    vision, text = config.vision_config, config.text_config
    h, f, m = vision.hidden_size, vision.intermediate_size, vision.spatial_merge_size**2
    patches = sum(t * a * b for t, a, b in grids)
    squares = sum(t * (a * b) ** 2 for t, a, b in grids)
    patch_dim = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    encoder = 2.0 * patches * patch_dim * h
    encoder += vision.depth * (patches * (8 * h * h + 4 * h * f) + 4 * h * squares)
    mergers = 1 + len(vision.deepstack_visual_indexes)
    merged = patches / m
    projector = mergers * merged * 2.0 * (m * h) * (m * h + vision.out_hidden_size)

    d, heads, kv = text.hidden_size, text.num_attention_heads, text.num_key_value_heads
    head = getattr(text, "head_dim", None) or d // heads
    linear = 2 * d * head * (2 * heads + 2 * kv) + 6 * d * text.intermediate_size
    attention = 2.0 * heads * head * num_tokens**2  # Half of 4: causal.
    backbone = text.num_hidden_layers * (num_tokens * linear + attention)
    backbone += 2.0 * num_targets * d * text.vocab_size
    return ModuleFlops(encoder, projector, backbone)


def train_flops(forward: ModuleFlops, *, encoder: bool, backbone: bool) -> float:
    """Model FLOPs of training on a sample, recomputation excluded.

    A trained module costs three forwards (6 FLOPs a weight and token); a frozen one that
    gradients pass through two (4), else one (2).

    Args:
        forward: Forward FLOPs.
        encoder: Whether encoder and projector train.
        backbone: Whether the backbone trains.
    """
    first = 3 if encoder else 1
    second = 3 if backbone else (2 if encoder else 1)
    return first * (forward.encoder + forward.projector) + second * forward.backbone
