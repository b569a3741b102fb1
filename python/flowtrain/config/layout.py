"""Layout of the ranks: which process holds which module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

ModuleName = Literal["encoder", "backbone"]
MODULES: tuple[ModuleName, ...] = get_args(ModuleName)


@dataclass(frozen=True, slots=True)
class WorldLayout:
    """Ranks of one torch world, which hold the same modules.

    Attributes:
        name: `encoder`, `backbone`, or `colocated`.
        size: Number of ranks.
        modules: The modules that each of its ranks holds.
    """

    name: str
    size: int
    modules: tuple[ModuleName, ...]

    def label(self, rank: int) -> str:
        """Name of one of its ranks."""
        return f"{self.name}.{rank}"

    @property
    def labels(self) -> list[str]:
        return [self.label(rank) for rank in range(self.size)]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankLayout:
    """Which ranks there are, and which modules each holds.

    Attributes:
        encoder_ranks: Ranks that hold the encoder.
        backbone_ranks: Ranks that hold the backbone.
        colocated: Whether these are the same ranks.
    """

    encoder_ranks: int
    backbone_ranks: int
    colocated: bool

    @staticmethod
    def decoupled(encoder_ranks: int, backbone_ranks: int) -> RankLayout:
        return RankLayout(
            encoder_ranks=encoder_ranks, backbone_ranks=backbone_ranks, colocated=False
        )

    @staticmethod
    def colocated_on(ranks: int) -> RankLayout:
        return RankLayout(encoder_ranks=ranks, backbone_ranks=ranks, colocated=True)

    @property
    def worlds(self) -> tuple[WorldLayout, ...]:
        """The torch worlds. The world with the backbone is first: it plans, and logs the run."""
        if self.colocated:
            return (WorldLayout("colocated", self.backbone_ranks, ("encoder", "backbone")),)
        return (
            WorldLayout("backbone", self.backbone_ranks, ("backbone",)),
            WorldLayout("encoder", self.encoder_ranks, ("encoder",)),
        )

    @property
    def labels(self) -> list[str]:
        """Names of all ranks."""
        return [label for world in self.worlds for label in world.labels]

    def labels_that_last(self, *, elastic: bool) -> list[str]:
        """Names of the ranks that are there from the start of a job to its end.

        Args:
            elastic: Whether encoder ranks come and go.
        """
        if not elastic:
            return self.labels
        return [label for w in self.worlds if "backbone" in w.modules for label in w.labels]

    def ranks_of(self, module: ModuleName) -> int:
        """Number of ranks that hold a module."""
        return self.encoder_ranks if module == "encoder" else self.backbone_ranks

    def world(self, name: str) -> WorldLayout | None:
        """The world of that name, or None."""
        return next((world for world in self.worlds if world.name == name), None)

    def holder(self, module: ModuleName, rank: int) -> str:
        """Name of the rank that is number `rank` of those that hold a module."""
        return next(world.label(rank) for world in self.worlds if module in world.modules)

    def __str__(self) -> str:
        if self.colocated:
            return f"colocated {self.backbone_ranks}"
        return f"{self.encoder_ranks} + {self.backbone_ranks}"
