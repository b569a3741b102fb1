"""Memory of weights, gradients and optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from flowtrain.config.optim import OptimConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class StateBytes:
    """Memory that lasts from step to step; `gradients` from the backward pass to the step.

    Attributes:
        weights: Bytes of the weights of the passes.
        masters: Bytes of the weights that the optimizer steps, if the passes have others.
        gradients: Bytes of the gradients.
        moments: Bytes of the optimizer's moments.
    """

    weights: int
    masters: int
    gradients: int
    moments: int

    @property
    def total(self) -> int:
        return self.weights + self.masters + self.gradients + self.moments


def state_bytes(
    parameters: int, trained: int, optim: OptimConfig, *, itemsize: int, stored_itemsize: int
) -> StateBytes:
    """States of a module that one rank holds as a whole.

    With AdamW, a parameter that trains takes 16 bytes in float32, and 18 with float32 master
    weights of bfloat16 ones. AdamW's count of steps, 4 bytes for each tensor, is left out.

    Args:
        parameters: Parameters of the module.
        trained: Those of them that train.
        optim: Section `optim`.
        itemsize: Bytes of a weight in the passes (`model.compute_dtype`).
        stored_itemsize: Bytes of a weight that trains as it is stored (`model.dtype`).

    Raises:
        ValueError: More parameters train than there are.
    """
    if not 0 <= trained <= parameters:
        raise ValueError(
            f"trained={trained}: the module has parameters={parameters}; count those that train "
            "among them"
        )
    stepped_bytes = trained * stored_itemsize
    moments = 2 if optim.name == "adamw" else int(optim.momentum > 0)
    return StateBytes(
        weights=parameters * itemsize,
        masters=stepped_bytes if stored_itemsize > itemsize else 0,
        gradients=stepped_bytes,
        moments=moments * stepped_bytes,
    )
