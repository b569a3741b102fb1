"""How often a step computes each module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self


@dataclass(frozen=True, kw_only=True, slots=True)
class Passes:
    """Forward and backward of each module in a step, in forward passes."""

    encoder: float
    backbone: float

    @classmethod
    def of_evaluation(cls) -> Self:
        """Passes of an evaluation, which has no backward."""
        return cls(encoder=1.0, backbone=1.0)

    @classmethod
    def of(
        cls,
        mode: Literal["frozen", "strict", "bounded"],
        *,
        recompute: bool,
        trains_backbone: bool,
    ) -> Self:
        """Passes of a run.

        Args:
            mode: `flow.mode`. A frozen encoder has no backward.
            recompute: `flow.recompute`: whether the encoder encodes again before its backward.
            trains_backbone: Whether the backbone trains. A frozen one passes gradients on.
        """
        encoder = 1.0 if mode == "frozen" else 3.0 + recompute
        return cls(encoder=encoder, backbone=3.0 if trains_backbone else 2.0)
