"""Configuration of the language model, and files that all families have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowtrain.models.tiny.sizes import TinyModel


def text_config(sizes: TinyModel, vocabulary: Mapping[str, int], kind: str) -> dict[str, Any]:
    """Configuration of a Llama-like decoder of some `model_type`."""
    return {
        "model_type": kind,
        "vocab_size": len(vocabulary),
        "hidden_size": sizes.text_width,
        "intermediate_size": sizes.text_intermediate,
        "num_hidden_layers": sizes.text_depth,
        "num_attention_heads": sizes.text_heads,
        "num_key_value_heads": sizes.text_kv_heads,
        "head_dim": sizes.text_head_dim or sizes.text_width // sizes.text_heads,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": sizes.tied,
    }


def write_config(folder: Path, config: Any, architecture: str, *, end: int, pad: int) -> None:
    """Write `config.json` and `generation_config.json`."""
    config.architectures = [architecture]
    config.save_pretrained(folder)
    tokens = {"eos_token_id": end, "pad_token_id": pad}
    folder.joinpath("generation_config.json").write_text(json.dumps(tokens))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(content, indent=2))
