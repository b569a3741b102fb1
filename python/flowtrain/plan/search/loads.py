"""What each sample costs a plan, and how the times of its stages grow with that."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from flowtrain.plan.arrays import FloatArray
from flowtrain.plan.search.coupled import Priced

_TINY = 1e-30  # In place of a mean of 0, by which nothing is divided then.


class Loads:
    """Costs of the samples of a workload in a plan, and the times of a mean microbatch.

    The backbone's time grows with tokens and with tokens^2 by sample, in the shares that attention
    and the rest have of a mean microbatch; that of an encoder grows with its FLOPs.

    Attributes:
        text: Cost of each sample to the backbone, shape [num_samples].
        inputs: FLOPs of each sample in each encoder, each of shape [num_samples].
        mean_text: Sum of `text` over a mean microbatch of a replica.
        mean_inputs: Sum of `inputs` over a mean microbatch of a replica, for each encoder.
        mean_encoder: Sum of `inputs` over what a replica of an encoder on its own computes at once,
            for each encoder.

    Args:
        priced: The plan.
    """

    def __init__(self, priced: Priced) -> None:
        work, pipeline, tables = priced.context.work, priced.pipeline, priced.context.tables
        mesh, share = pipeline.shape.mesh, work.share
        replica_slots = mesh.dp * pipeline.num_microbatches
        tokens = work.workload.tokens.astype(numpy.float64)
        count = pipeline.chain.layers_of_kind
        passes = tables.text_passes(pipeline.row.tokens, mesh)
        attention = float(passes[2] @ count) / max(float(passes[0] @ count), _TINY)
        self.text = (1 - attention) * tokens / share.tokens
        self.text += attention * tokens**2 / share.squares
        self.mean_text = work.batch * float(self.text.mean()) / replica_slots
        groups = pipeline.num_microbatches if priced.mode == "disaggregated" else 1
        self.inputs: list[FloatArray] = []
        self.mean_inputs: list[float] = []
        self.mean_encoder: list[float] = []
        for place, encoder in enumerate(tables.model.encoders):
            flops = tables.sample_flops(range(encoder.first, encoder.end))
            mean = max(float(flops.mean()), _TINY)
            replicas = priced.encoders[place].shape.mesh.dp if priced.encoders else 1
            # The price is of no less than the largest input, taken as that share of the tokens.
            largest = mean * work.largest_input_of(encoder.modality, groups)
            largest /= max(share.encoded[encoder.modality].tokens, _TINY)
            self.inputs.append(flops)
            self.mean_inputs.append(work.batch * mean / replica_slots)
            self.mean_encoder.append(max(work.batch * mean / (replicas * groups), largest))
        self._split(priced)

    def _split(self, priced: Priced) -> None:
        """Passes of each stage, of the layers of each encoder and of the rest."""
        pipeline, cut = priced.pipeline, priced.cut
        costs, tables = pipeline.costs, priced.context.tables
        self._inputs_s: list[FloatArray] = []
        self._text_s = numpy.array([cut.forward_s, cut.backward_s])[:, :, None, None]
        for place in range(len(tables.model.encoders)):
            found = []
            for kinds, stage in zip(pipeline.stage_counts(cut.stages), cut.stages, strict=True):
                again = costs.again[0] * (stage.recompute == "full")
                own = kinds * (tables.encoder == place)
                backward_s = (costs.backward[0].sum(0) + again) @ own
                found.append((costs.forward[0].sum(0) @ own, backward_s))
            self._inputs_s.append(numpy.array(found).T[:, :, None, None])
            self._text_s = numpy.maximum(self._text_s - self._inputs_s[-1], 0.0)

    def passes(self, text: FloatArray, inputs: Sequence[FloatArray]) -> FloatArray:
        """Forward and backward passes, shape [2, num_stages, num_microbatches, num_replicas].

        Args:
            text: Sum of `text` over each microbatch, shape [num_microbatches, num_replicas].
            inputs: The same of `inputs`, for each encoder.
        """
        found: FloatArray = self._text_s * (text / self.mean_text)
        for own_s, load, mean in zip(self._inputs_s, inputs, self.mean_inputs, strict=True):
            found = found + own_s * (load / mean)
        return found
