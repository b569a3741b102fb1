"""Files of a model that decide how samples are read and what is trained."""

from __future__ import annotations

from pathlib import Path

from flowtrain.data.records.base import hash_of

# Nothing here generates text.
_DECIDING = ("*.json", "*.jinja", "*.model", "*.txt")
_OTHERS = ("*.index.json", "generation_config.json")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_HASHED_BYTES = 4 << 30


def model_files(folder: Path, *, weights: bool = False) -> list[Path]:
    """Configuration, tokenizer, processor and chat template, in the order of their names.

    Args:
        folder: Hugging Face folder; one that does not exist has no files.
        weights: Whether files of weights are among them, behind the others.
    """
    paths = sorted(folder.glob("*"))
    found = [
        path
        for path in paths
        if any(path.match(pattern) for pattern in _DECIDING)
        and not any(path.match(pattern) for pattern in _OTHERS)
    ]
    return found + (_weight_files(paths) if weights else [])


def model_hashes(folder: Path, *, weights: bool = False) -> dict[str, str]:
    """SHA-256 of each of `model_files`, by name.

    Of weights at most 4 GiB are read, in blocks spread over their files.

    Raises:
        OSError: A file cannot be read.
    """
    files = model_files(folder, weights=weights)
    sampled = set(_weight_files(files))
    every = max(1, -(-sum(path.stat().st_size for path in sampled) // _HASHED_BYTES))
    hashes = {}
    for path in files:
        with path.open("rb") as file:
            hashes[path.name] = hash_of(file.fileno(), every=every if path in sampled else 1)
    return hashes


def _weight_files(paths: list[Path]) -> list[Path]:
    return [path for path in paths if any(path.match(pattern) for pattern in _WEIGHTS)]


def changed_names(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Names whose hashes differ or that only one of both has, sorted."""
    return [
        name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)
    ]
