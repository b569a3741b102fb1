"""Samples: JSONL conversations with local images, their tokens and pixels, and packed batches."""

from typing import TYPE_CHECKING, Any

from flowtrain.data.errors import DataError

if TYPE_CHECKING:
    from flowtrain.data.packed import PackedLoader, VlmCollator
    from flowtrain.data.vlm_samples import VlmSamples

__all__ = ["DataError", "PackedLoader", "VlmCollator", "VlmSamples"]


def __getattr__(name: str) -> Any:
    # Imported on demand, as they need torch and the other modules here do not.
    if name in ("PackedLoader", "VlmCollator"):
        from flowtrain.data import packed

        return getattr(packed, name)
    if name == "VlmSamples":
        from flowtrain.data.vlm_samples import VlmSamples

        return VlmSamples
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
