"""Model families by the `model_type` of their configuration."""

from __future__ import annotations

import pkgutil
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from flowtrain.config.lora import LoraConfig
from flowtrain.cost.flops import Side
from flowtrain.models.adapters import require_peft
from flowtrain.models.errors import ModelError
from flowtrain.models.family import Family
from flowtrain.models.folder import read_config
from flowtrain.models.versions import require_transformers

FAMILIES = {
    "qwen3_vl": "flowtrain.models.qwen3_vl:Qwen3VL",
    "qwen3_vl_moe": "flowtrain.models.qwen3_vl:Qwen3VL",
    "qwen2_5_vl": "flowtrain.models.qwen2_5_vl:Qwen25VL",
    "internvl": "flowtrain.models.internvl:InternVL",
    "llava": "flowtrain.models.llava:Llava",
    "llava_onevision": "flowtrain.models.llava_onevision:LlavaOnevision",
}
"""Class of each family, imported on demand."""

ENTRY_POINTS = "flowtrain.families"
"""Entry-point group in which other packages name their families: `model_type = package:Class`."""


def family_for(
    folder: Path, *, projector_side: Side = "encoder", lora: LoraConfig | None = None
) -> Family:
    """The family of a local Hugging Face folder.

    Args:
        folder: The folder.
        projector_side: The side of the cut on which the projector is computed.
        lora: Adapters of the model; None has none.

    Raises:
        ModelError: The folder has no config.json that can be read, its model type has no family,
            or one that takes no adapters, or the installed transformers cannot be used.
        ConfigError: There are adapters, and PEFT is not installed.
    """
    kind = read_config(folder).get("model_type")
    # First, as the file of a family imports names that other versions lack.
    require_transformers()
    family: Family = _class_of(kind, folder / "config.json")(folder, projector_side=projector_side)
    if lora is not None and lora.adapters:
        require_peft()
        if not family.takes_adapters:
            raise ModelError(
                f"{folder / 'config.json'}: model_type={kind} with section lora: its family "
                "adds no adapters; leave lora out, or let its build and meta_model add them"
            )
        family.lora = lora
    return family


def has_family(model_type: str) -> bool:
    """Whether there is a family for the models of a `model_type`."""
    return model_type in FAMILIES or model_type in _added()


def _added() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _class_of(kind: Any, path: Path) -> Any:
    if kind in FAMILIES:
        return pkgutil.resolve_name(FAMILIES[kind])
    added = _added()
    if kind in added:
        return added[kind].load()
    raise ModelError(
        f"{path}: model_type={kind} has no family; choose a model of "
        f"{', '.join([*FAMILIES, *added])}, or write a subclass of flowtrain.models.family.Family "
        f"and name it in the entry-point group {ENTRY_POINTS}, as docs/families.md shows"
    )
