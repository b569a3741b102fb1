"""A small thinker of Qwen2.5-Omni, with its vision tower and its audio tower."""

from __future__ import annotations

from typing import Any

from transformers import Qwen2_5OmniThinkerConfig


def thinker_config() -> Any:
    """Configuration, with chunks of 20 frames and windows of two by two tokens."""
    return Qwen2_5OmniThinkerConfig(
        audio_config={
            "num_mel_bins": 8,
            "encoder_layers": 2,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 48,
            "d_model": 32,
            "n_window": 10,
            "output_dim": 64,
            "max_source_positions": 50,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "patch_size": 4,
            "window_size": 16,
            "out_hidden_size": 64,
            "fullatt_block_indexes": [1],
        },
        text_config={
            "vocab_size": 100,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "mrope_section": [2, 3, 3],
            },
        },
        audio_token_index=96,
        image_token_index=97,
        video_token_index=98,
    )
