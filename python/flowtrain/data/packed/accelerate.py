"""Errors where Hugging Face's accelerate would divide batches or losses a second time."""

from __future__ import annotations

import sys

import torch

from flowtrain.packing import PackingError

_OF_DATA_LOADER = ("batch_sampler", "batch_size", "drop_last", "sampler")


def check_division() -> None:
    """Refuse to train where accelerate divides losses that weights of microbatches multiply.

    Raises:
        PackingError: The process has an `Accelerator` with accumulation steps.
    """
    accelerate = sys.modules.get("accelerate.state")
    steps = 1 if accelerate is None else accelerate.GradientState().num_steps
    if steps > 1 and torch.is_grad_enabled():
        raise PackingError(
            f"Accelerator(gradient_accumulation_steps={steps}): accelerator.backward divides each "
            "loss by it, but weights of microbatches are shares of the whole step already; leave "
            "it out, and enter accelerator.no_sync(model) unless microbatch.ends_step"
        )


def missing(name: str) -> AttributeError:
    """The error for an attribute that a packed loader does not have.

    Args:
        name: The attribute; accelerate takes those of a `DataLoader` to divide or to skip batches.
    """
    text = f"'PackedLoader' object has no attribute '{name}'"
    if name in _OF_DATA_LOADER:
        text += (
            ": it has divided the batches among the ranks already; accelerator.prepare leaves it "
            "as it is, and load_state_dict skips what was trained, in place of skip_first_batches"
        )
    return AttributeError(text)
