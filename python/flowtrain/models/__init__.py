"""Hugging Face VLMs, split into encoder and backbone."""

from flowtrain.models.errors import ModelError

__all__ = ["ModelError"]
