"""Samples: JSONL conversations with local images, their tokens and pixels, and packed batches."""

from typing import TYPE_CHECKING, Any

from flowtrain.data.errors import DataError

if TYPE_CHECKING:
    from flowtrain.data.packed import PackedLoader

__all__ = ["DataError", "PackedLoader"]


def __getattr__(name: str) -> Any:
    # Imported on demand, as it needs torch and the other modules here do not.
    if name == "PackedLoader":
        from flowtrain.data.packed import PackedLoader

        return PackedLoader
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
