"""FLOPs of one sample by module."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

Side = Literal["encoder", "backbone"]
"""What a rank holds: the parts of a model in front of the cut, whose output crosses the pool, or
those behind it."""

Grid = tuple[int, int, int]
"""Size of an image for its encoder, in three numbers whose meaning its family defines; for Qwen-VL
frames, height and width in patches."""


@dataclass(frozen=True, slots=True)
class ModuleFlops:
    """FLOPs (a multiply-add is two) of one sample.

    Attributes:
        encoder: Vision encoder.
        projector: From the encoder's features to the backbone's embeddings.
        backbone: Decoder and output head.
    """

    encoder: float
    projector: float
    backbone: float

    def __add__(self, other: ModuleFlops) -> ModuleFlops:
        return ModuleFlops(
            self.encoder + other.encoder,
            self.projector + other.projector,
            self.backbone + other.backbone,
        )

    @property
    def total(self) -> float:
        return self.encoder + self.projector + self.backbone

    def on(self, side: Side, projector: Side) -> float:
        """FLOPs on one side of the cut, where the projector is on one of them."""
        own = self.encoder if side == "encoder" else self.backbone
        return own + self.projector if side == projector else own


def train_flops(
    forward: ModuleFlops, trained: Collection[str], adapted: Collection[str] = ()
) -> ModuleFlops:
    """Model FLOPs of training on a sample, recomputation excluded.

    A trained part costs three forward passes (6 FLOPs per weight and token), a frozen one two (4)
    if gradients pass through it, and one (2) otherwise. A part with LoRA adapters costs two, as its
    weights have no gradients; the adapters, which are small, are not counted.

    Args:
        forward: Forward FLOPs.
        trained: Parts that train: `encoder`, `projector`, `backbone`.
        adapted: Those of them that train by adapters.
    """
    found = {}
    passes_gradients = False
    for part, flops in (
        ("encoder", forward.encoder),
        ("projector", forward.projector),
        ("backbone", forward.backbone),
    ):
        weights_train = part in trained and part not in adapted
        passes_gradients = passes_gradients or part in trained
        found[part] = flops * (3 if weights_train else 2 if passes_gradients else 1)
    return ModuleFlops(**found)
