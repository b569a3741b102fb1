"""The two sides of the cut as modules: each runs as one forward, and holds nothing of the other.

FSDP2 gathers weights in the forward of a module, so that all that a rank computes with a side goes
through that forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from flowtrain.cost.flops import Grid

if TYPE_CHECKING:
    from flowtrain.models.family import Family
    from flowtrain.models.packed_batch import LossOutput, PackedBatch


class Encoder(torch.nn.Module):
    """What lies in front of the cut; its parameters have the names of the full model.

    Args:
        family: Family of the model.
        model: The model without its language model.
    """

    def __init__(self, family: Family, model: Any) -> None:
        super().__init__()
        self._family = family
        self.model = model.model

    def forward(self, pixel_values: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """Rows that cross the pool; see `Family.encode`."""
        return self._family.encode(self, pixel_values, grids)


class Backbone(torch.nn.Module):
    """What lies behind the cut; its parameters have the names of the full model.

    Args:
        family: Family of the model.
        model: The model without its vision tower.

    Attributes:
        logit_bytes: As for `Family.loss`.
    """

    def __init__(self, family: Family, model: Any) -> None:
        super().__init__()
        self._family = family
        self.model = model.model
        self.lm_head = model.lm_head
        self.logit_bytes: int | None = None

    def require_input_gradients(self) -> None:
        """Let gradients reach the embeddings of all tokens, also where these are frozen.

        Where ranks meet in a backward pass, all of them have to run through all layers, those
        without an image as well.
        """
        embeddings = self.model.get_input_embeddings()
        embeddings.register_forward_hook(lambda _module, _inputs, out: out.requires_grad_())

    def forward(
        self, batch: PackedBatch, rows: torch.Tensor | None, *, answer: bool = False
    ) -> LossOutput | torch.Tensor:
        """Loss of packed documents, or the most likely next token of each.

        Args:
            batch: As for `Family.loss`.
            rows: As for `Family.loss`.
            answer: Return what `Family.next_tokens` does, in place of the loss.
        """
        if answer:
            return self._family.next_tokens(self, batch, rows)
        return self._family.loss(self, batch, rows, logit_bytes=self.logit_bytes)
