"""What a rank holds and does in every step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flowtrain.config.layout import RankLayout


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """A rank, as a schedule sees it."""

    label: str
    """Its name, such as `encoder.0`."""
    replica: int
    """Its number among the data replicas of its modules."""
    encoder: bool
    """Whether it holds the encoder."""
    backbone: bool
    """Whether it holds the backbone."""
    trains_encoder: bool
    """Whether the encoder trains."""

    @property
    def updates(self) -> bool:
        """Whether it takes part in the update at the end of steps."""
        return self.backbone or self.trains_encoder


def roles(layout: RankLayout, *, trains_encoder: bool) -> Iterator[Role]:
    """The roles of all ranks of a layout."""
    for world in layout.worlds:
        for rank in range(world.size):
            yield Role(
                label=world.label(rank),
                replica=rank,
                encoder="encoder" in world.modules,
                backbone="backbone" in world.modules,
                trains_encoder=trains_encoder,
            )
