"""Hugging Face folders of small models: configuration, tokenizer and processor, without weights.

Nothing is downloaded. The files are those of the released models, with small sizes and a tokenizer
of characters. A digit of 8 x 8 pixels makes few image tokens.
"""

from __future__ import annotations

import pkgutil
from pathlib import Path

from flowtrain.models.tiny.sizes import SMALLEST, TinyModel

__all__ = ["SMALLEST", "TINY", "TinyModel", "write_tiny_model"]

TINY = {
    "qwen3_vl": "flowtrain.models.tiny.qwen:write_qwen3_vl",
    "qwen3_vl_moe": "flowtrain.models.tiny.qwen:write_qwen3_vl_moe",
    "qwen2_5_vl": "flowtrain.models.tiny.qwen:write_qwen2_5_vl",
    "internvl": "flowtrain.models.tiny.internvl:write_internvl",
    "llava": "flowtrain.models.tiny.llava:write_llava",
    "llava_onevision": "flowtrain.models.tiny.llava:write_llava_onevision",
}
"""Function that writes the folder of each family, by `model_type`; imported on demand."""


def write_tiny_model(
    folder: Path, sizes: TinyModel | None = None, *, family: str = "qwen3_vl"
) -> None:
    """Write configuration, tokenizer and processor of a small model.

    Args:
        folder: Folder to write, created if it does not exist.
        sizes: Widths and depths.
        family: `model_type` of the model, a key of `TINY`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pkgutil.resolve_name(TINY[family])(folder, sizes or TinyModel())
