"""The output head and its cross entropy, with a bound on the logits that exist at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def head_loss(
    head: torch.nn.Module,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    *,
    vocabulary: int,
    logit_bytes: int | None,
) -> torch.Tensor:
    """Sum of the cross entropies of some tokens (0-dim).

    If their logits are more than the limit, both passes go chunk by chunk of the rows, and the
    backward pass computes the logits of a chunk again. A chunk has up to three times the limit:
    logarithms of probabilities, and two gradients of them.

    Args:
        head: From rows of `hidden` to logits.
        hidden: Shape [tokens, width].
        targets: Ids, shape [tokens].
        vocabulary: Logits of a token.
        logit_bytes: Maximum bytes of the logits in float32, or in float64 if `hidden` is, that are
            held at once, but at least those of a token; None for no limit.
    """
    exact = torch.float64 if hidden.dtype == torch.float64 else torch.float32

    def loss(rows: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(head(rows).to(exact), wanted, reduction="sum")

    tokens, token_bytes = len(targets), vocabulary * exact.itemsize
    if logit_bytes is None or tokens * token_bytes <= logit_bytes:
        return loss(hidden, targets)
    chunks = -(-tokens // max(1, logit_bytes // token_bytes))
    size = -(-tokens // chunks)
    return torch.stack(
        [
            # Weights are read from the head in both passes, so that they may be gathered for each.
            checkpoint(loss, rows, wanted, use_reentrant=False)
            for rows, wanted in zip(hidden.split(size), targets.split(size), strict=True)
        ]
    ).sum()
