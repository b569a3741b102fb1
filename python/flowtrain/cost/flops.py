"""FLOPs of one sample by module."""

from __future__ import annotations

from dataclasses import dataclass

Grid = tuple[int, int, int]
"""Size of an image for its encoder, in three numbers whose meaning its family defines; for Qwen-VL
frames, height and width in patches."""


@dataclass(frozen=True, slots=True)
class ModuleFlops:
    """Forward FLOPs (a multiply-add is two) of one sample.

    Attributes:
        encoder: Vision encoder.
        projector: From the encoder's features to the backbone's embeddings.
        backbone: Decoder and output head.
    """

    encoder: float
    projector: float
    backbone: float


def train_flops(forward: ModuleFlops, *, encoder: bool, backbone: bool) -> float:
    """Model FLOPs of training on a sample, recomputation excluded.

    A trained module costs three forward passes (6 FLOPs per weight and token), a frozen one two
    (4) if gradients pass through it, and one (2) otherwise.

    Args:
        forward: Forward FLOPs.
        encoder: Whether encoder and projector are trained.
        backbone: Whether the backbone is trained.
    """
    first = 3 if encoder else 1
    second = 3 if backbone else (2 if encoder else 1)
    return first * (forward.encoder + forward.projector) + second * forward.backbone
