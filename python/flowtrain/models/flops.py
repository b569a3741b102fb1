"""Forward FLOPs of the parts of a model, read from its Hugging Face configuration.

Matrix products only; a multiply-add is two. Each attribute of a transformers configuration takes
microseconds to read, and a planner asks for every sample, so that each class reads it once.
"""

from __future__ import annotations

from typing import Any


class DecoderFlops:
    """Decoder with grouped-query attention and SwiGLU, and its output head.

    Causal attention is counted half. The head, and output projection and MLP of the last layer, run
    on the tokens that predict a target.

    Source: the sums of Megatron-Bridge's `flop_utils.py`, which count all of these for every token.

    Args:
        text: Configuration of the language model.
    """

    def __init__(self, text: Any) -> None:
        d, heads = text.hidden_size, text.num_attention_heads
        kv = getattr(text, "num_key_value_heads", None) or heads
        head = getattr(text, "head_dim", None) or d // heads
        layers = text.num_hidden_layers
        projection, mlp = 2.0 * d * head * heads, 6.0 * d * text.intermediate_size
        last = projection + mlp
        self._token = layers * (2 * projection + 4 * d * head * kv + mlp) - last
        self._pair = layers * 2.0 * heads * head  # Half of 4: causal.
        self._target = last + 2.0 * d * text.vocab_size

    def __call__(self, num_tokens: int, num_targets: int) -> float:
        """Forward FLOPs of a document."""
        return num_tokens * self._token + num_tokens**2 * self._pair + num_targets * self._target


class TowerFlops:
    """Vision transformer.

    Args:
        depth: Layers.
        width: Hidden size.
        mlp_flops: FLOPs of the MLP of one layer for one token.
        patch_values: Values of a patch, from which its embedding is made.
        windowed: Layers whose attention is within windows.
    """

    def __init__(
        self, *, depth: int, width: int, mlp_flops: float, patch_values: int, windowed: int = 0
    ) -> None:
        self._embedding = 2.0 * patch_values * width
        self._token = depth * (8.0 * width**2 + mlp_flops)
        self._pair = 4.0 * width * (depth - windowed)
        self._pair_in_windows = 4.0 * width * windowed

    def __call__(
        self, *, patches: int, tokens: int, squares: float, squares_in_windows: float = 0.0
    ) -> float:
        """Forward FLOPs.

        Args:
            patches: Patches that are embedded.
            tokens: Tokens of the transformer: the patches, and class tokens.
            squares: Sum of the squared lengths of the sequences that attend to themselves.
            squares_in_windows: The same in windowed layers.
        """
        return (
            patches * self._embedding
            + tokens * self._token
            + squares * self._pair
            + squares_in_windows * self._pair_in_windows
        )
