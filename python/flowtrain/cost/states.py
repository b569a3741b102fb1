"""Memory of weights, gradients and optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from flowtrain.config.optim import OptimConfig

_FLOAT32_BYTES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class StateBytes:
    """Memory that lasts from step to step; `gradients` from the backward pass to the step.

    Attributes:
        weights: Bytes of the weights.
        masters: Bytes of the float32 copies that the optimizer steps.
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


def state_bytes(parameters: int, trained: int, optim: OptimConfig, *, itemsize: int) -> StateBytes:
    """States of a module that one rank holds as a whole.

    With AdamW, a parameter that trains takes 16 bytes in float32, and 18 in bfloat16 with master
    weights. AdamW's count of steps, 4 bytes for each tensor, is left out.

    Args:
        parameters: Parameters of the module.
        trained: Those of them that train.
        optim: Section `optim`.
        itemsize: Bytes of a weight.

    Raises:
        ValueError: More parameters train than there are.
    """
    if not 0 <= trained <= parameters:
        raise ValueError(
            f"trained={trained}: the module has parameters={parameters}; count those that train "
            "among them"
        )
    has_masters = optim.master_weights and itemsize < _FLOAT32_BYTES
    stepped_bytes = trained * (_FLOAT32_BYTES if has_masters else itemsize)
    moments = 2 if optim.name == "adamw" else int(optim.momentum > 0)
    return StateBytes(
        weights=parameters * itemsize,
        masters=stepped_bytes if has_masters else 0,
        gradients=stepped_bytes,
        moments=moments * stepped_bytes,
    )
