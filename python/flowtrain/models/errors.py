"""Errors raised by `flowtrain.models`."""

from flowtrain_core import FlowTrainError


class ModelError(FlowTrainError, ValueError):
    """A model cannot be used. The message names the model, the limit and what to do."""
