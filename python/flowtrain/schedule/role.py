"""What a rank holds and does in every step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from flowtrain.config.layout import RankLayout
from flowtrain.config.parallel import Meets
from flowtrain.config.schema import RunConfig


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
    meets: Meets = "never"
    """When the passes of the backbone take all of its ranks. Those of the encoder are equal in
    number by the items of the plan."""

    @property
    def updates(self) -> bool:
        """Whether it takes part in the update at the end of steps."""
        return self.backbone or self.trains_encoder


def roles(layout: RankLayout, *, trains_encoder: bool, meets: Meets = "never") -> Iterator[Role]:
    """The roles of all ranks of a layout.

    Args:
        layout: The layout.
        trains_encoder: Whether the encoder trains.
        meets: When the passes of the backbone take all of its ranks.
    """
    for world in layout.worlds:
        for rank in range(world.size):
            yield Role(
                label=world.label(rank),
                replica=rank,
                encoder="encoder" in world.modules,
                backbone="backbone" in world.modules,
                trains_encoder=trains_encoder,
                meets=meets,
            )


def roles_of(config: RunConfig) -> Iterator[Role]:
    """The roles of all ranks of a run.

    Encoder ranks that come and go have one role together: which of them encodes an item is not
    known before.
    """
    layout = config.flow.chosen
    if config.elastic:
        layout = RankLayout.decoupled(1, layout.backbone_ranks)
    return roles(
        layout,
        trains_encoder=config.flow.mode != "frozen",
        meets=config.parallel_of("backbone").meets,
    )
