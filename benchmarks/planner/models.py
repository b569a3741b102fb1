"""Models of the sizes for which layouts were compared elsewhere; no weights."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cost.released import internvl, qwen2_5_omni, qwen2_5_vl, qwen3_vl_moe
from transformers import InternVLConfig, Qwen2_5_VLConfig

from flowtrain.models.describe import describe
from flowtrain.plan.describe import ModelDescription

_72B = {
    "hidden_size": 8192,
    "intermediate_size": 29568,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 152064,
    "max_window_layers": 80,
    "layer_types": None,
}
# InternViT-6B, whose heads tensor parallelism pads.
_6B_VIT = {
    "hidden_size": 3200,
    "intermediate_size": 12800,
    "num_hidden_layers": 45,
    "num_attention_heads": 25,
    "image_size": [448, 448],
    "patch_size": [14, 14],
    "norm_type": "rms_norm",
    "use_qk_norm": True,
}


def _native_72b() -> Any:
    """Qwen2.5-VL-72B."""
    small = qwen2_5_vl()
    text = {**small.text_config.to_dict(), **_72B}
    vision = {**small.vision_config.to_dict(), "out_hidden_size": 8192}
    return Qwen2_5_VLConfig(text_config=text, vision_config=vision)


def _tiles(**text: Any) -> Any:
    given = {**internvl().text_config.to_dict(), **text}
    return InternVLConfig(text_config=given, vision_config=_6B_VIT, tie_word_embeddings=False)


MODELS: dict[str, Callable[[], Any]] = {
    "7B, native ViT": qwen2_5_vl,
    "7B, 6B ViT": _tiles,
    "72B, native ViT": _native_72b,
    "72B, 6B ViT": lambda: _tiles(**_72B),
    "MoE 30B-A3B": qwen3_vl_moe,
    "Omni 7B": qwen2_5_omni,
}
"""Configuration by name."""


def described(name: str) -> ModelDescription:
    """The description of one of them."""
    with tempfile.TemporaryDirectory() as folder:
        MODELS[name]().save_pretrained(folder)
        model = describe(Path(folder), name=name)
    return model
