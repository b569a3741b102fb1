"""Configuration of LoRA adapters, which train in place of the weights of a part."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flowtrain.config.checks import positive, require

if TYPE_CHECKING:
    from flowtrain.config.model import Part

_RANK, _ALPHA = 0, 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """LoRA adapters of one part of the model."""

    rank: int = _RANK
    """Rank of the adapters; 0 means that the part has none."""
    alpha: int = _ALPHA
    """Numerator of the factor `alpha / rank` of what an adapter adds to the output of its layer."""
    targets: tuple[str, ...] = ()
    """Linear layers that have an adapter, by the ends of their names, such as `q_proj`; by default
    all of the part but the output head."""

    def check(self, part: Part) -> None:
        """Check the adapters of a part.

        Raises:
            ConfigError: Fields contradict each other, or a value is unusable.
        """
        name = f"lora.{part}"
        require(self.rank >= 0, f"{name}.rank={self.rank}: it must be 0 or more")
        positive(**{f"{name}.alpha": self.alpha})
        require(
            self.rank > 0 or (self.alpha == _ALPHA and not self.targets),
            f"{name}.rank=0 with alpha={self.alpha} and targets=[{', '.join(self.targets)}]: the "
            "part has no adapters; set rank",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraConfig:
    """LoRA adapters of PEFT, which train in place of the weights of a part."""

    encoder: Adapter = field(default_factory=Adapter)
    """Adapters of the vision tower."""
    projector: Adapter = field(default_factory=Adapter)
    """Adapters of the projector."""
    backbone: Adapter = field(default_factory=Adapter)
    """Adapters of the language model."""
    dropout: float = 0.0
    """Rate of dropout of the inputs of all adapters."""

    def __post_init__(self) -> None:
        require(
            0 <= self.dropout < 1,
            f"lora.dropout={self.dropout}: it must be at least 0 and less than 1",
        )
        self.encoder.check("encoder")
        self.projector.check("projector")
        self.backbone.check("backbone")
        require(
            self.dropout == 0 or bool(self.adapters),
            f"lora.dropout={self.dropout}: no part has adapters; set lora.backbone.rank, or leave "
            "lora.dropout out",
        )

    @property
    def adapters(self) -> dict[Part, Adapter]:
        """The adapters of each part that has them."""
        parts: tuple[Part, ...] = ("encoder", "projector", "backbone")
        found = {part: getattr(self, part) for part in parts}
        return {part: adapter for part, adapter in found.items() if adapter.rank}

    @property
    def ranks(self) -> dict[str, int]:
        """The rank of the adapters of each part that has them."""
        return {part: adapter.rank for part, adapter in self.adapters.items()}
