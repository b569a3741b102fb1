"""Errors of a run."""

from __future__ import annotations


class RunFailed(RuntimeError):
    """A rank ended the run; the message names the rank, its reason, and its log."""
