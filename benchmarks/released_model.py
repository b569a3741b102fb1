"""Folders of models in released sizes, with drawn weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForImageTextToText

from flowtrain.models.tiny import TinyModel, write_tiny_model

_2B = TinyModel(
    vision_width=1024,
    vision_depth=24,
    vision_heads=16,
    taps=(5, 11, 17),
    text_width=2048,
    text_depth=28,
    text_heads=16,
    text_kv_heads=8,
    text_intermediate=6144,
    tied=True,
)
QWEN3_VL = {
    "2b": _2B,
    "4b": replace(
        _2B,
        text_width=2560,
        text_depth=36,
        text_heads=32,
        text_head_dim=128,
        text_intermediate=9728,
    ),
}
"""Released sizes of Qwen3-VL; both have the same tower."""

VOCABULARY = 151_936
PATCH = 16
TOKEN_PIXELS = 2 * PATCH
"""Pixels of an image token on each side."""
MAX_PIXELS = 16_384 * TOKEN_PIXELS**2


def write_qwen3_vl(folder: Path, sizes: TinyModel, *, vocabulary: int, device: str) -> int:
    """Write configuration, tokenizer of characters, processor, and bfloat16 weights of Qwen3-VL.

    Args:
        folder: Folder to write, created if it does not exist.
        sizes: Widths and depths.
        vocabulary: Rows of the embedding; the tokenizer uses the first ones.
        device: Device on which weights are drawn.

    Returns:
        Number of parameters.
    """
    write_tiny_model(folder, sizes)
    _edit(
        folder / "config.json",
        text_config={"vocab_size": vocabulary, "max_position_embeddings": 1 << 18},
        vision_config={
            "patch_size": PATCH,
            "intermediate_size": 4 * sizes.vision_width,
            "num_position_embeddings": 48 * 48,
        },
    )
    limits = {"shortest_edge": 4 * TOKEN_PIXELS**2, "longest_edge": MAX_PIXELS}
    for name in ("preprocessor_config.json", "video_preprocessor_config.json"):
        _edit(folder / name, patch_size=PATCH, size=limits)
    torch.manual_seed(0)
    with torch.device(device):
        model: Any = AutoModelForImageTextToText.from_config(
            AutoConfig.from_pretrained(folder), dtype=torch.bfloat16
        )
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def _edit(path: Path, **changes: Any) -> None:
    """Change fields of a JSON file; a field that is an object keeps its other fields."""
    tree = json.loads(path.read_text())
    for name, value in changes.items():
        tree[name] = {**tree[name], **value} if isinstance(value, dict) else value
    path.write_text(json.dumps(tree, indent=2))
