"""Configurations of released models; no weights, and nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import (
    InternVLConfig,
    LlavaConfig,
    LlavaOnevisionConfig,
    Qwen2_5_VLConfig,
    Qwen2_5OmniThinkerConfig,
    Qwen3VLConfig,
    Qwen3VLMoeConfig,
)


def _decoder(
    kind: str,
    *,
    width: int,
    inner: int,
    depth: int,
    heads: int,
    kv_heads: int,
    vocabulary: int,
    **more: Any,
) -> dict[str, Any]:
    return {
        "model_type": kind,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        **more,
    }


def _qwen2_7b(vocabulary: int, kind: str = "qwen2", **more: Any) -> dict[str, Any]:
    sizes = {"width": 3584, "inner": 18944, "depth": 28, "heads": 28, "kv_heads": 4}
    return _decoder(kind, **sizes, vocabulary=vocabulary, **more)


def _qwen3_vision(out: int) -> dict[str, Any]:
    return {
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_heads": 16,
        "out_hidden_size": out,
        "patch_size": 16,
        "deepstack_visual_indexes": [8, 16, 24],
    }


_INTERLEAVED = {
    "rope_type": "default",
    "rope_theta": 5e6,
    "mrope_section": [24, 20, 20],
    "mrope_interleaved": True,
}


def qwen3_vl() -> Any:
    """Qwen3-VL-8B."""
    text = _decoder(
        "qwen3_vl_text",
        width=4096,
        inner=12288,
        depth=36,
        heads=32,
        kv_heads=8,
        vocabulary=151936,
        head_dim=128,
        rope_parameters=_INTERLEAVED,
    )
    return Qwen3VLConfig(text_config=text, vision_config=_qwen3_vision(4096))


def qwen3_vl_moe() -> Any:
    """Qwen3-VL-30B-A3B."""
    text = _decoder(
        "qwen3_vl_moe_text",
        width=2048,
        inner=6144,
        depth=48,
        heads=32,
        kv_heads=4,
        vocabulary=151936,
        head_dim=128,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        rope_parameters=_INTERLEAVED,
    )
    return Qwen3VLMoeConfig(text_config=text, vision_config=_qwen3_vision(2048))


def qwen2_5_vl() -> Any:
    """Qwen2.5-VL-7B."""
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    vision = {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
    }
    text = _qwen2_7b(152064, "qwen2_5_vl_text", rope_parameters=rope)
    return Qwen2_5_VLConfig(text_config=text, vision_config=vision)


def internvl() -> Any:
    """InternVL3-8B."""
    vision = {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": [448, 448],
        "patch_size": [14, 14],
    }
    return InternVLConfig(text_config=_qwen2_7b(151674), vision_config=vision)


def llava() -> Any:
    """LLaVA-1.5-7B."""
    text = _decoder(
        "llama", width=4096, inner=11008, depth=32, heads=32, kv_heads=32, vocabulary=32064
    )
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 336,
        "patch_size": 14,
    }
    return LlavaConfig(text_config=text, vision_config=vision)


def llava_onevision() -> Any:
    """LLaVA-OneVision-7B."""
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 26,
        "num_attention_heads": 16,
        "image_size": 384,
        "patch_size": 14,
        "vision_use_head": False,
    }
    return LlavaOnevisionConfig(text_config=_qwen2_7b(152000), vision_config=vision)


def qwen2_5_omni() -> Any:
    """The thinker of Qwen2.5-Omni-7B, which FlowTrain plans and does not train."""
    vision = {**qwen2_5_vl().vision_config.to_dict(), "model_type": "qwen2_5_omni_vision_encoder"}
    audio = {"d_model": 1280, "encoder_layers": 32, "encoder_attention_heads": 20, "n_window": 100}
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    text = _qwen2_7b(152064, "qwen2_5_omni_text", rope_parameters=rope)
    return Qwen2_5OmniThinkerConfig(vision_config=vision, audio_config=audio, text_config=text)


RELEASED: dict[str, Callable[[], Any]] = {
    "qwen3_vl": qwen3_vl,
    "qwen2_5_vl": qwen2_5_vl,
    "internvl": internvl,
    "llava": llava,
    "llava_onevision": llava_onevision,
}
"""Configuration by the `model_type` of its family."""
