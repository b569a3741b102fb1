"""Hugging Face VLMs, split at their encoder."""

from flowtrain.models.errors import ModelError

__all__ = ["ModelError"]
