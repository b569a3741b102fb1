"""The backbone's part of a rank whose passes a loop of the caller computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flowtrain.models.documents import Documents
from flowtrain.models.huggingface import HuggingFaceFamily
from flowtrain.models.packed_batch import LossOutput, PackedBatch
from flowtrain.steps import StepPlan
from flowtrain.train.ranks.backbone import BackbonePart
from flowtrain_core import FlowTrainError

_IGNORED = -100


class FlowError(FlowTrainError, RuntimeError):
    """A loop called `Flow` in an order that has no meaning."""


class Batch(dict[str, Any]):
    """Arguments of the model for a microbatch.

    Attributes:
        weight: What its mean loss is multiplied by, so that the gradients of all microbatches add
            up to that of the mean loss of the step, on several ranks as DDP averages them. A
            microbatch with another weight than 0 must have a backward before the next is taken.
        ends_step: Whether it is the last of its step on this rank.
    """

    weight: float = 0.0
    ends_step: bool = False


class LoopPart(BackbonePart):
    """Prepares each microbatch for a loop, and takes the gradient of its image rows.

    DDP averages the gradients of the ranks: weights are multiplied by the ranks, so that the
    average is the sum, and the gradients of rows, which are not averaged, divided by them.

    Attributes:
        batch: The microbatch that the loop has to compute.
        loss: Mean loss of a microbatch of an evaluation; None takes the model's own.
    """

    batch: Batch
    loss: Callable[[Batch], torch.Tensor] | None = None

    def _loss(self, plan: StepPlan, batch: PackedBatch, rows: torch.Tensor | None) -> LossOutput:
        family: Any = self._context.family
        assert isinstance(family, HuggingFaceFamily)
        labels = batch.labels.clone()
        # Nothing predicts the first token of a document.
        labels[Documents(batch.doc_lengths).boundaries(labels.device)[:-1].long()] = _IGNORED
        num_targets = len(batch.predicting)
        if not num_targets:
            labels[-1] = batch.input_ids[-1]  # Its mean is a number, and its weight 0.
        inputs = family.model_inputs(self.module.module, batch, rows)
        self.batch = Batch(inputs, labels=labels[None])
        if plan.kind == "eval":
            return LossOutput(self._mean_loss() * num_targets, num_targets)
        self.batch.weight = self._context.world.size * num_targets / max(1, plan.num_targets)
        # The loss itself is the loop's.
        return LossOutput(torch.zeros(()), num_targets)

    def _mean_loss(self) -> torch.Tensor:
        """Mean loss of a microbatch of an evaluation, in the dtype that the loop computes in."""
        model, dtype = self.module.module, self._context.dtype
        casts = dtype != next(model.parameters()).dtype
        with torch.autocast(self._context.world.device.type, dtype, enabled=casts):
            loss = model(**self.batch).loss if self.loss is None else self.loss(self.batch)
        return torch.as_tensor(loss)

    def _backward(self, _plan: StepPlan, _loss: LossOutput) -> None:
        """The loop has done it."""

    def _gradient(self, features: torch.Tensor) -> torch.Tensor:
        if features.grad is None and self.batch.weight:
            raise FlowError(
                "flow.steps: a microbatch with images had no backward before the next one was "
                "taken, or the step ended, and its encoder would not train; call backward in the "
                "loop over the microbatches, once for each; to leave one out, set batch.weight = 0"
            )
        return super()._gradient(features) / self._context.world.size
