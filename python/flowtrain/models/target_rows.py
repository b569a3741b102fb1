"""The last decoder layer, limited to the rows that the loss reads."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Module


def compute_target_rows(layer: Module) -> None:
    """Let the last decoder layer run its output projection and its MLP on target rows alone.

    After the attention of the last layer no row depends on another, and the loss reads only the
    rows that predict a target. The others keep their residual. Loss and gradients are those of the
    full layer.

    A forward of `layer` then takes the argument `target_rows`: indices of these rows, shape
    [targets], in an input of shape [1, rows, width]. Without it all rows are computed.

    Args:
        layer: Layer with the modules `self_attn.o_proj` and `mlp` of transformers' decoder layers,
            neither of which mixes rows.
    """
    attention: Any = layer.self_attn
    mlp: Any = layer.mlp
    hooks = _TargetRows()
    # Recomputation in the backward pass calls the hooks of the attention, but not of the layer.
    attention.register_forward_pre_hook(hooks.begin, with_kwargs=True)
    for module in (attention.o_proj, mlp):
        module.register_forward_pre_hook(hooks.select)
        module.register_forward_hook(hooks.spread)


class _TargetRows:
    """Hooks of one layer."""

    _targets: torch.Tensor | None = None
    _rows: int

    def begin(self, _: Module, __: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._targets = kwargs.get("target_rows")

    def select(self, _: Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        if self._targets is None:
            return args
        self._rows = args[0].shape[1]
        return (args[0][:, self._targets],)

    def spread(self, _: Module, __: tuple[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        if self._targets is None:
            return out
        spread = out.new_zeros(1, self._rows, out.shape[-1])
        return spread.index_copy(1, self._targets, out)
