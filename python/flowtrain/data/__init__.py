"""Samples: JSONL conversations with local images, and what the model sees of them."""

from flowtrain.data.errors import DataError

__all__ = ["DataError"]
