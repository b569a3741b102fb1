"""What the features of an image depend on beside the image: the context in a cache."""

from __future__ import annotations

from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from flowtrain.cache import Context
from flowtrain.models.digest import weights_digest
from flowtrain.models.family import Family

_PACKAGES = ("flowtrain", "torch", "transformers", "pillow", "numpy", "av")
_FILES = (
    *("config.json", "processor_config.json", "preprocessor_config.json"),
    "video_preprocessor_config.json",
)


def feature_context(
    family: Family,
    encoder: torch.nn.Module,
    folder: Path,
    *,
    dtype: torch.dtype,
    row_dtype: torch.dtype,
    device: torch.device,
    compiled: bool,
) -> Context:
    """The context of the features that a rank computes.

    Features of another context may differ, if only in their last bits.

    Args:
        family: Family of the model.
        encoder: All that is in front of the cut.
        folder: Hugging Face folder of the model.
        dtype: Dtype of the passes.
        row_dtype: Dtype of the rows.
        device: Device of the encoder.
        compiled: Whether its blocks are compiled.
    """
    on_cpu = device.type == "cpu"
    description: dict[str, Any] = {
        "model": family.config.model_type,
        "weights": weights_digest(encoder),
        "files": {
            name: sha256((folder / name).read_bytes()).hexdigest()
            for name in _FILES
            if (folder / name).exists()
        },
        "dtype": str(dtype),
        "rows": f"{row_dtype} {dict(family.fields)}",
        "projector": family.projector_side,
        "device": "cpu" if on_cpu else torch.cuda.get_device_name(device),
        "instructions": torch.backends.cpu.get_cpu_capability() if on_cpu else None,
        "threads": torch.get_num_threads() if on_cpu else None,
        "compiled": compiled,
        "matmul_precision": torch.get_float32_matmul_precision(),
        "versions": {name: _version(name) for name in _PACKAGES},
    }
    return Context(description)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
