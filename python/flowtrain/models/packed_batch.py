"""Documents side by side in one row, and the loss of such a row."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from flowtrain.cost.flops import Grid
from flowtrain.models.send import send

_IGNORED = -100


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedBatch:
    """Documents side by side in one row, on the device of a rank.

    Attributes:
        input_ids: Shape [tokens].
        labels: Shape [tokens], not shifted; -100 where a token is no target.
        position_ids: Shape [axes, tokens], as `Family.position_ids` returns them.
        grids: Grids of the images and videos of all documents, in order.
        doc_lengths: Tokens of each document, in order.
        predicting: Indices of the tokens that predict a target, shape [targets].
        visual: Indices of the tokens of images and videos, shape [visual tokens].
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor
    grids: Sequence[Grid]
    doc_lengths: list[int]
    predicting: torch.Tensor
    visual: torch.Tensor


class LossOutput(NamedTuple):
    """Sum of the cross entropies of the target tokens (0-dim), and their number.

    A tuple, in which FSDP2 finds the tensor.
    """

    loss_sum: torch.Tensor
    num_targets: int


def pack(
    *,
    input_ids: torch.Tensor,
    labels: torch.Tensor,
    position_ids: torch.Tensor,
    grids: Sequence[Grid],
    doc_lengths: list[int],
    visual_ids: Collection[int],
    device: torch.device,
) -> PackedBatch:
    """Send a row to a device, with the indices that its forward pass needs.

    They are computed here, in host memory: on the device, the host would wait for their numbers.

    Args:
        input_ids: As in `PackedBatch`, in host memory.
        labels: The same.
        position_ids: The same.
        grids: The same.
        doc_lengths: The same.
        visual_ids: Token ids of images and videos, `Family.visual_ids`.
        device: Device of the result.
    """
    # A token predicts the next one of its document; the last one predicts nothing.
    targets = labels.roll(-1)
    targets[torch.tensor(doc_lengths).cumsum(0) - 1] = _IGNORED
    visual = torch.isin(input_ids, torch.tensor(list(visual_ids)))
    return PackedBatch(
        input_ids=send(input_ids, device),
        labels=send(labels, device),
        position_ids=send(position_ids, device),
        grids=grids,
        doc_lengths=doc_lengths,
        predicting=send((targets != _IGNORED).nonzero().flatten(), device),
        visual=send(visual.nonzero().flatten(), device),
    )
