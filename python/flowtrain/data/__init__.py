"""Samples: JSONL conversations with local images, what the model sees, and packed batches."""

from typing import TYPE_CHECKING, Any

from flowtrain.data.errors import DataError

if TYPE_CHECKING:
    from flowtrain.data.packed import PackedLoader

__all__ = ["DataError", "PackedLoader"]


def __getattr__(name: str) -> Any:
    # The readers of this room's files are processes that need no torch.
    if name == "PackedLoader":
        from flowtrain.data.packed import PackedLoader

        return PackedLoader
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
