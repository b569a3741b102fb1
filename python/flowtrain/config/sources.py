"""Data sets of a run that mixes several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flowtrain.config.checks import require

_MAX_WEIGHT = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceConfig:
    """One of several data sets, and how often its samples are drawn."""

    path: Path | None = None
    """File or folder, as `data.path`."""
    dataset: str | None = None
    """Function that returns the samples, as `data.dataset`; exclusive with `path`."""
    weight: float = 1.0
    """Draws of each sample per epoch, on average. With 2 an epoch draws each sample twice; with
    0.5 an epoch draws one half of the samples, and the next epoch the other half."""
    image_root: Path | None = None
    """Base folder of relative image paths; by default `data.image_root`, or else the folder that
    contains `path`."""

    def __post_init__(self) -> None:
        require(
            (self.path is None) != (self.dataset is None),
            f"data.sources: path={self.path}, dataset={self.dataset}: give exactly one of the two "
            "in each source",
        )
        if self.dataset is not None:
            check_import_path("data.sources: dataset", self.dataset)
        require(
            0 < self.weight <= _MAX_WEIGHT,
            f"data.sources: {self.name}: weight={self.weight:g}: it must be greater than 0 and at "
            f"most {_MAX_WEIGHT}; remove the source to draw none of it",
        )

    @property
    def name(self) -> str:
        """Path or import path of the data set, for messages."""
        return str(self.path) if self.path is not None else f"data.dataset={self.dataset}"

    @property
    def root(self) -> Path | None:
        """Folder that relative image paths start from; None if there is none."""
        if self.image_root is not None or self.path is None:
            return self.image_root
        return self.path.parent


def check_sources(sources: Sequence[SourceConfig]) -> None:
    """Require different data sets, as a sample must have a single number.

    Raises:
        ConfigError: A data set is given twice.
    """
    names = [source.name for source in sources]
    for name in names:
        require(
            names.count(name) == 1,
            f"data.sources: {name} is given twice; give it once, with the sum of the weights",
        )


def check_import_path(field: str, spec: str) -> None:
    """Require an import path.

    Raises:
        ConfigError: The value is none; the message names the field.
    """
    module, colon, name = spec.partition(":")
    require(
        bool(colon) and all(map(str.isidentifier, [*module.split("."), name])),
        f"{field}={spec}: write package.module:make, where make is a function of the module",
    )
