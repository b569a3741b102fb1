"""Configuration of how the ranks of a module share its states and its memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from flowtrain.config.checks import positive, require
from flowtrain.config.layout import ModuleName

Sharding = Literal["replicated", "optimizer", "full"]
"""States that the ranks of a module divide: none; master weights and moments (ZeRO-1); or weights
and gradients too (FSDP, ZeRO-3)."""
Meets = Literal["never", "once", "always"]
"""When the passes of a module take all of its ranks: never; at least one pass of each rank in a
step, in which weights are gathered or gradients reduced; or in all passes."""
Recompute = Literal["none", "selective", "full"]
"""Recomputation of a layer in its backward pass: none; all but its attention; the whole layer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleParallel:
    """How the ranks of one module share its states and its memory."""

    sharding: Sharding = "replicated"
    """States that the ranks divide. `replicated`: none, so that each rank has all of them.
    `optimizer`: master weights and moments, with weights gathered once a step (ZeRO-1). `full`:
    weights and gradients too, with each layer gathered when it is needed (FSDP)."""
    shard_ranks: int | None = None
    """Ranks that divide one copy of the states (hybrid sharding, HSDP); null means all ranks of the
    module. It must divide their number."""
    recompute: Recompute = "none"
    """What the layers compute again in the backward pass, so as not to keep it: nothing, all but
    the outputs of the attention, or everything but the layer's input. The numbers are the same."""
    recompute_layers: int | None = None
    """Number of layers, from the first, that `recompute` applies to; null means all."""

    @property
    def meets(self) -> Meets:
        """When the passes of the module take all of its ranks."""
        meets: dict[Sharding, Meets] = {
            "replicated": "never",
            "optimizer": "once",
            "full": "always",
        }
        return meets[self.sharding]

    def check(self, module: ModuleName) -> None:
        """Check the fields of a module.

        Raises:
            ConfigError: Fields contradict each other, or a value is unusable.
        """
        name = f"parallel.{module}"
        if self.shard_ranks is not None:
            positive(**{f"{name}.shard_ranks": self.shard_ranks})
            require(
                self.sharding != "replicated",
                f"{name}.shard_ranks={self.shard_ranks} with sharding=replicated: nothing is "
                "divided; set sharding to full or optimizer, or leave shard_ranks out",
            )
        if self.recompute_layers is not None:
            positive(**{f"{name}.recompute_layers": self.recompute_layers})
            require(
                self.recompute != "none",
                f"{name}.recompute_layers={self.recompute_layers} with recompute=none: set "
                "recompute to full or selective, or leave recompute_layers out",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelConfig:
    """How the ranks of each module share its states and its memory."""

    encoder: ModuleParallel = field(default_factory=ModuleParallel)
    """The encoder."""
    backbone: ModuleParallel = field(default_factory=ModuleParallel)
    """The backbone."""

    def __post_init__(self) -> None:
        self.encoder.check("encoder")
        self.backbone.check("backbone")

    def of(self, module: ModuleName) -> ModuleParallel:
        """The part of a module."""
        return self.encoder if module == "encoder" else self.backbone
