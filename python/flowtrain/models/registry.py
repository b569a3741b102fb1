"""Model families by the `model_type` of their configuration."""

from __future__ import annotations

import json
import pkgutil
from pathlib import Path

from flowtrain.models.adapter import VLMAdapter
from flowtrain.models.errors import ModelError
from flowtrain.models.versions import require_transformers

ADAPTERS = {"qwen3_vl": "flowtrain.models.qwen3_vl:Qwen3VLAdapter"}
"""Adapter class of each family, imported on demand."""


def adapter_for(folder: Path) -> VLMAdapter:
    """The adapter of a local Hugging Face folder.

    Raises:
        ModelError: The folder has no config.json that can be read, its model type has no adapter,
            or the installed transformers cannot be used.
    """
    path = folder / "config.json"
    if not path.exists():
        raise ModelError(f"{folder}: no config.json; give a local Hugging Face model folder")
    try:
        kind = json.loads(path.read_text()).get("model_type")
    except ValueError as error:
        raise ModelError(f"{path}: not JSON ({error}); correct it") from error
    if kind not in ADAPTERS:
        raise ModelError(
            f"{path}: model_type={kind} is not supported; choose a model of {', '.join(ADAPTERS)}"
        )
    # First, as the file of an adapter imports names that other versions lack.
    require_transformers()
    adapter: VLMAdapter = pkgutil.resolve_name(ADAPTERS[kind])(folder)
    return adapter
