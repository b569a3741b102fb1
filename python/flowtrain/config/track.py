"""Configuration of trackers and traces."""

from __future__ import annotations

from dataclasses import dataclass

from flowtrain.config.checks import not_negative, positive


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackConfig:
    """Trackers of experiments that get the figures of each step, besides the logs of the run."""

    tensorboard: bool = False
    """Whether to write TensorBoard's event files to `RUN/tensorboard`."""
    wandb: str | None = None
    """W&B project to log to; null logs to none. Its own environment variables set the rest."""
    profile_start: int | None = None
    """First step, from 0, that torch's profiler traces on every rank, into `RUN/profile`; null
    traces none."""
    profile_steps: int = 3
    """Number of steps that the profiler traces."""
    event_steps: int = 1000
    """Number of the last steps whose events are kept in `RUN/events`; of earlier ones only sums
    are."""

    def __post_init__(self) -> None:
        not_negative(track__profile_start=self.profile_start or 0)
        positive(track__profile_steps=self.profile_steps, track__event_steps=self.event_steps)
