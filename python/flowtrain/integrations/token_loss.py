"""The loss of a step in the Trainer, for models that do not take its number of target tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from flowtrain.packing import PackingError

if TYPE_CHECKING:
    from transformers import Trainer

TokenLoss = Callable[..., torch.Tensor]
"""A `compute_loss_func` of the Trainer: of outputs, labels and num_items_in_batch."""


def token_loss(trainer: Trainer) -> TokenLoss:
    """The sum over the target tokens of a microbatch, divided by those of the step.

    It is the causal language modelling loss of transformers, which the model would compute itself
    if it were given `num_items_in_batch`. The Trainer keeps the labels from the model, counts
    targets over all ranks, and multiplies by the number of ranks, over which DDP and FSDP average.

    Args:
        trainer: A Trainer whose model takes no `num_items_in_batch`.

    Raises:
        PackingError: The model's own loss is another one.
    """
    from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss

    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    name = type(model).__name__
    own = getattr(model, "loss_function", None)
    known = LOSS_MAPPING.get(getattr(model, "loss_type", None) or "")
    encodes = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    if encodes or not (own is known is ForCausalLMLoss):
        raise PackingError(_unknown_loss(model))
    if trainer.label_smoother is not None:
        raise PackingError(
            f"args.label_smoothing_factor={trainer.args.label_smoothing_factor}: {name} takes no "
            "num_items_in_batch, and the loss that takes its place is not smoothed; set it to 0, "
            "or give the Trainer a compute_loss_func"
        )

    def loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        if getattr(outputs, "aux_loss", None) is not None:
            raise PackingError(
                f"{name}: it adds an auxiliary loss, which the loss of packed batches would leave "
                "out; set output_router_logits=False in its configuration, or give the Trainer a "
                "compute_loss_func"
            )
        logits = outputs["logits"]
        return ForCausalLMLoss(
            logits, labels, logits.shape[-1], num_items_in_batch=num_items_in_batch
        )

    return loss


def _unknown_loss(model: Any) -> str:
    if hasattr(model, "accepts_loss_kwargs"):
        why = "accepts_loss_kwargs is False"
        way_out = (
            ", or set model.accepts_loss_kwargs = True before the Trainer is made, if forward "
            "passes its **kwargs to a loss that divides by num_items_in_batch"
        )
    else:
        why, way_out = "forward takes no **kwargs", ""
    return (
        f"model ({type(model).__name__}): its {why}, so the Trainer does not pass it the number of "
        "target tokens of the step (num_items_in_batch), and its loss is not the one of causal "
        "language models in transformers, so the means of unequal microbatches would be averaged; "
        f"give the Trainer a compute_loss_func{way_out}"
    )
