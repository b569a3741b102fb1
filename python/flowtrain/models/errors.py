"""The error of this room."""


class ModelError(ValueError):
    """A model cannot be used; the message names it, the limit and the way out."""
