"""A trained model as a plain Hugging Face folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from transformers import PreTrainedModel

# Written anew by save_pretrained, or weights of the start.
_NOT_COPIED = ("config.json", "*.safetensors*", "*.bin*", "*.pt", "*.pth", ".*")


def save_final(folder: Path, source: Path, model: PreTrainedModel) -> None:
    """Write weights, configuration, tokenizer and processor.

    Args:
        folder: Written so that `AutoModelForImageTextToText.from_pretrained` and
            `AutoProcessor.from_pretrained` load it, without FlowTrain installed.
        source: The folder that the run started from; its tokenizer and processor files are
            copied as they are.
        model: The full model.
    """
    model.set_attn_implementation("sdpa")
    model.save_pretrained(folder)
    for path in source.iterdir():
        if path.is_file() and not any(path.match(pattern) for pattern in _NOT_COPIED):
            shutil.copy2(path, folder / path.name)
