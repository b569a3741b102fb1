"""A model with fewer layers, for a device that does not hold the whole one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoConfig

_DEPTHS = ("num_hidden_layers", "depth")
_PER_LAYER = ("layer_types",)


def write_shallow(folder: Path, place: Path, *, depth: int) -> None:
    """Write a folder with the configuration of a model of fewer layers.

    Its layers are equal to those of the model, but there are at most `depth` of each module. Taps
    of the tower and blocks with full attention move to its first and last blocks.

    Args:
        folder: Hugging Face folder of the model.
        place: Folder to write; it has links to the other files, but none to weights.
        depth: Maximum blocks of the tower, and layers of the decoder.

    Raises:
        ValueError: The tower has more taps than blocks are left.
    """
    config: Any = AutoConfig.from_pretrained(folder)
    for section in (config.get_text_config(), config.vision_config):
        for name in _DEPTHS:
            if getattr(section, name, None):
                setattr(section, name, min(depth, getattr(section, name)))
        for name in _PER_LAYER:
            if getattr(section, name, None):
                setattr(section, name, list(getattr(section, name))[:depth])
    vision = config.vision_config
    if taps := getattr(vision, "deepstack_visual_indexes", None):
        if len(taps) > depth:
            raise ValueError(
                f"--depth {depth}: the tower has {len(taps)} deepstack taps; keep as many layers"
            )
        vision.deepstack_visual_indexes = list(range(len(taps)))
    if getattr(vision, "fullatt_block_indexes", None):
        vision.fullatt_block_indexes = [min(depth, vision.depth) - 1]
    config.save_pretrained(place)
    for file in folder.iterdir():
        if file.suffix not in (".safetensors", ".bin") and not (place / file.name).exists():
            (place / file.name).symlink_to(file.resolve())
