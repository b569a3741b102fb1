"""A trained model as a plain Hugging Face folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from transformers import PreTrainedModel

# Files that save_pretrained writes, and the initial weights.
_NOT_COPIED = ("config.json", "*.safetensors*", "*.bin*", "*.pt", "*.pth", ".*")


def save_final(folder: Path, source: Path, model: PreTrainedModel) -> None:
    """Write weights, configuration, tokenizer and processor.

    Args:
        folder: Folder to write. `AutoModelForImageTextToText.from_pretrained` and
            `AutoProcessor.from_pretrained` can load it without FlowTrain.
        source: Folder that the run started from. Its tokenizer and processor files are copied
            unchanged.
        model: The full model.
    """
    model.set_attn_implementation("sdpa")
    model.save_pretrained(folder)
    for path in source.iterdir():
        if path.is_file() and not any(path.match(pattern) for pattern in _NOT_COPIED):
            shutil.copy2(path, folder / path.name)
