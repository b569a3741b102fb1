"""Files of a model that decide how samples are read and what is trained, without weights."""

from __future__ import annotations

import hashlib
from pathlib import Path

# Weights come from a checkpoint, and nothing here generates text.
_DECIDING = ("*.json", "*.jinja", "*.model", "*.txt")
_OTHERS = ("*.index.json", "generation_config.json")


def model_files(folder: Path) -> list[Path]:
    """Configuration, tokenizer, processor and chat template, in the order of their names.

    Args:
        folder: Hugging Face folder; one that does not exist has no files.
    """
    return [
        path
        for path in sorted(folder.glob("*"))
        if any(path.match(pattern) for pattern in _DECIDING)
        and not any(path.match(pattern) for pattern in _OTHERS)
    ]


def model_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of each of `model_files`, by name.

    Raises:
        OSError: A file cannot be read.
    """
    hashes = {}
    for path in model_files(folder):
        with path.open("rb") as file:
            hashes[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def changed_names(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Names whose hashes differ or that only one of both has, sorted."""
    return [
        name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)
    ]
