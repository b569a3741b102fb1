"""Limits of image sizes in the processor files of a trained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import AutoImageProcessor

from flowtrain.models.images import PixelLimits

# Either may hold the image processor; where both do, transformers takes the first.
_FILES = {"processor_config.json": "image_processor", "preprocessor_config.json": None}


def write_pixel_limits(folder: Path, limits: PixelLimits) -> str | None:
    """Write the limits that a model was trained with in place of those of its processor.

    Args:
        folder: The trained model, with an image processor that scales images by limits.
        limits: Those of the run.

    Returns:
        What was changed, for a message; None if the processor had these limits.
    """
    if not limits:
        return None
    own: Any = AutoImageProcessor.from_pretrained(folder).size
    before = own["shortest_edge"], own["longest_edge"]
    given = limits.min_pixels, limits.max_pixels
    now = tuple(old if new is None else new for old, new in zip(before, given, strict=True))
    if now == before:
        return None
    for name, field in _FILES.items():
        path = folder / name
        if not path.exists():
            continue
        tree = json.loads(path.read_text(encoding="utf-8"))
        fields = tree if field is None else tree.get(field)
        if fields is None:
            continue
        for older in ("min_pixels", "max_pixels"):  # They would take precedence.
            fields.pop(older, None)
        fields["size"] = {"shortest_edge": now[0], "longest_edge": now[1]}
        path.write_text(json.dumps(tree, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return (
        f"images are scaled to {now[0]} to {now[1]} pixels, as in training; the original processor "
        f"said {before[0]} to {before[1]}"
    )
