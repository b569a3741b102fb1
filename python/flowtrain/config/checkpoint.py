"""Configuration of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from flowtrain.config.checks import not_negative, positive


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """When the run is saved, and how many checkpoints are kept."""

    every: int = 0
    """Steps between checkpoints; 0 saves only at the end."""
    keep: int = 2
    """Number of checkpoints to keep; the oldest are deleted."""
    background: bool = False
    """Whether ranks copy what a checkpoint has to host memory, and write it while the run goes on.
    It takes that memory for the rest of the run, and the checkpoint is valid when all have
    written."""

    def __post_init__(self) -> None:
        not_negative(checkpoint__every=self.every)
        positive(checkpoint__keep=self.keep)
