"""The error of this room."""


class DataError(ValueError):
    """A sample cannot be used; the message names file and line, and the cause."""
