"""FLOPs of Qwen3-VL, for costs of samples and for MFU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowtrain.cost.flops import Grid, ModuleFlops


class Qwen3VLFlops:
    """Forward FLOPs of a sample, as the adapter computes it.

    Attention of the vision tower is over each frame of each image. Output head, and output
    projection and MLP of the last layer, are over the tokens that predict a target.

    Source: the sums of Megatron-Bridge's `flop_utils.py`, for Qwen3-VL, which count all of these
    for every token.

    Args:
        config: Configuration of the model. It is read here alone, because each attribute of a
            transformers configuration takes microseconds, and a planner asks for every sample.
    """

    def __init__(self, config: Any) -> None:
        vision, text = config.vision_config, config.text_config
        h, f, m = vision.hidden_size, vision.intermediate_size, vision.spatial_merge_size**2
        patch_dim = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        self._patch = 2.0 * patch_dim * h + vision.depth * (8 * h * h + 4 * h * f)
        self._pair_of_patches = vision.depth * 4 * h
        mergers = 1 + len(vision.deepstack_visual_indexes)
        self._merged_patch = mergers * 2.0 * (m * h) * (m * h + vision.out_hidden_size)
        self._merge = m

        d, heads, kv = text.hidden_size, text.num_attention_heads, text.num_key_value_heads
        head = getattr(text, "head_dim", None) or d // heads
        layers = text.num_hidden_layers
        projection, mlp = 2.0 * d * head * heads, 6.0 * d * text.intermediate_size
        last = projection + mlp
        self._token = layers * (2 * projection + 4 * d * head * kv + mlp) - last
        self._pair_of_tokens = layers * 2.0 * heads * head  # Half of 4: causal.
        self._target = last + 2.0 * d * text.vocab_size

    def __call__(self, num_tokens: int, grids: Sequence[Grid], *, num_targets: int) -> ModuleFlops:
        patches = sum(t * a * b for t, a, b in grids)
        squares = sum(t * (a * b) ** 2 for t, a, b in grids)
        return ModuleFlops(
            encoder=patches * self._patch + squares * self._pair_of_patches,
            projector=patches / self._merge * self._merged_patch,
            backbone=num_tokens * self._token
            + num_tokens**2 * self._pair_of_tokens
            + num_targets * self._target,
        )
