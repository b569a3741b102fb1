"""Errors raised by `flowtrain.models`."""


class ModelError(ValueError):
    """A model cannot be used. The message names the model, the limit and what to do."""
