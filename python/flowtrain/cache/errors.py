"""Errors of a cache of features."""

from flowtrain_core import FlowTrainError


class CacheError(FlowTrainError, ValueError):
    """A cache of features cannot be opened; the message names its folder and the cause."""
