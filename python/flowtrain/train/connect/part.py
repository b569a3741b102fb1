"""The backbone's part of a rank whose passes a loop of the caller computes."""

from __future__ import annotations

from typing import Any

import torch

from flowtrain.models.documents import Documents
from flowtrain.models.family import LossOutput, PackedBatch
from flowtrain.models.huggingface import HuggingFaceFamily
from flowtrain.steps import StepPlan
from flowtrain.train.ranks.backbone import BackbonePart

_IGNORED = -100


class Batch(dict[str, Any]):
    """Arguments of the model for a microbatch.

    Attributes:
        weight: Target tokens of the microbatch, divided by those of the step: times this weight,
            the mean losses of the microbatches add up to that of the step.
    """

    weight: float = 0.0


class LoopPart(BackbonePart):
    """Prepares each microbatch for a loop, and takes the gradient of its image rows.

    Attributes:
        batch: The microbatch that the loop has to compute; None if it has no target.
    """

    batch: Batch | None = None

    def _loss(self, plan: StepPlan, batch: PackedBatch, rows: torch.Tensor | None) -> LossOutput:
        family: Any = self._context.family
        assert isinstance(family, HuggingFaceFamily)
        labels = batch.labels.clone()
        # Nothing predicts the first token of a document.
        labels[Documents(batch.doc_lengths).boundaries(labels.device)[:-1].long()] = _IGNORED
        num_targets = int((labels != _IGNORED).sum())
        self.batch = None
        if num_targets:
            inputs = family.model_inputs(self.module.module, batch, rows)
            self.batch = Batch(inputs, labels=labels[None])
            self.batch.weight = num_targets / plan.num_targets
        # The loss itself is the loop's.
        return LossOutput(torch.zeros(()), num_targets)

    def _backward(self, _plan: StepPlan, _loss: LossOutput) -> None:
        """The loop has done it."""
        self.batch = None
