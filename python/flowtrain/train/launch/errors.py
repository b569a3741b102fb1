"""Errors of a run."""

from __future__ import annotations

from flowtrain_core import FlowTrainError


class RunFailed(FlowTrainError, RuntimeError):
    """A rank ended the run; the message names the rank, its reason, and its log."""
