"""Trackers of experiments, which get the figures of each step: TensorBoard and W&B."""

from __future__ import annotations

import importlib.util
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from flowtrain.config.checks import ConfigError
from flowtrain.config.track import TrackConfig

_WANDB_ID = "wandb-id"


class Tracker(Protocol):
    """Takes the figures of each step."""

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Take figures of a step, by name; a step may have several calls."""

    def close(self) -> None:
        """Write what has not been written yet."""


def check_trackers(config: TrackConfig) -> None:
    """Check that the packages of the trackers are installed.

    Raises:
        ConfigError: A package is missing.
    """
    for field, package, wanted in (
        ("track.tensorboard", "tensorboard", config.tensorboard),
        ("track.wandb", "wandb", config.wandb is not None),
    ):
        if wanted and importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"{field}: {package} is not installed; run pip install {package}, or remove the "
                "field"
            )


def open_trackers(
    config: TrackConfig, run: Path, *, first: int, settings: Mapping[str, Any]
) -> list[Tracker]:
    """The trackers of a run.

    Args:
        config: Section `track`.
        run: Folder of the run.
        first: First step that is logged; a resumed run has logged later ones before.
        settings: Configuration of the run, which W&B shows.
    """
    trackers: list[Tracker] = []
    if config.tensorboard:
        trackers.append(_TensorBoard(run, first))
    if config.wandb is not None:
        trackers.append(_Wandb(run, config.wandb, settings))
    return trackers


class _TensorBoard:
    """Writes event files to `RUN/tensorboard`; a thread of its own writes them."""

    def __init__(self, run: Path, first: int) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer: Any = SummaryWriter(str(run / "tensorboard"), purge_step=first)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    """Logs to a W&B run, which a resumed run continues; a process of its own sends the figures."""

    def __init__(self, run: Path, project: str, settings: Mapping[str, Any]) -> None:
        import wandb

        path = run / _WANDB_ID
        if not path.exists():
            path.write_text(uuid.uuid4().hex[:8])
        self._run: Any = wandb.init(
            project=project,
            name=run.name,
            id=path.read_text(),
            resume="allow",
            dir=str(run),
            config=dict(settings),
        )

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=step)

    def close(self) -> None:
        self._run.finish()
