"""What each sample costs a plan, and how the times of its stages grow with that."""

from __future__ import annotations

from collections.abc import Sequence

import numpy

from flowtrain.plan.arrays import FloatArray
from flowtrain.plan.prices.encoder import EncoderPrice
from flowtrain.plan.search.coupled import Priced
from flowtrain.plan.search.messages import Messages

_TINY = 1e-30  # In place of a mean of 0, by which nothing is divided then.


class Loads:
    """Costs of the samples of a workload in a plan, and the times of a mean microbatch.

    What the backbone computes grows with tokens and with tokens^2 by sample, in the shares that
    attention and the rest have of a mean microbatch; what an encoder computes grows with its FLOPs.
    Messages are those of `Messages`.

    Attributes:
        text: Cost of each sample to the backbone, shape [num_samples].
        inputs: FLOPs of each sample in each encoder, each of shape [num_samples].
        mean_tokens: Tokens of a mean microbatch of a replica.
        mean_text: Sum of `text` over it.
        mean_inputs: Sum of `inputs` over a mean microbatch of a replica, for each encoder.
        mean_encoder: Sum of `inputs` over what a replica of an encoder on its own computes for a
            microbatch, and a colocated one for a step, as it is priced; for each encoder.

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
        self.mean_tokens = pipeline.row.tokens
        self.mean_text = work.batch * float(self.text.mean()) / replica_slots
        apart = priced.mode == "disaggregated"
        self.inputs: list[FloatArray] = []
        self.mean_inputs: list[float] = []
        self.mean_encoder: list[float] = []
        for place, encoder in enumerate(tables.model.encoders):
            flops = tables.sample_flops(range(encoder.first, encoder.end))
            mean = max(float(flops.mean()), _TINY)
            own = priced.encoders[place] if priced.encoders else None
            replicas = own.shape.mesh.dp if own else 1
            meetings = own.meetings if own else 1
            groups = pipeline.num_microbatches if apart else meetings
            # The price is of no less than the largest input, taken as that share of the tokens.
            largest = mean * work.largest_input_of(encoder.modality, groups)
            largest /= max(share.encoded[encoder.modality].tokens, _TINY)
            self.inputs.append(flops)
            self.mean_inputs.append(work.batch * mean / replica_slots)
            at_once = max(work.batch * mean / (replicas * groups), largest)
            self.mean_encoder.append(at_once * meetings)
        self._split(priced)

    def _split(self, priced: Priced) -> None:
        """Computing in the passes of each stage, of the layers of each encoder and of the rest."""
        tables = priced.context.tables
        self._messages = Messages(priced)
        of_kind_s = self._messages.computing_s
        self._inputs_s = [
            of_kind_s[:, :, tables.encoder == place].sum(-1)[:, :, None, None]
            for place in range(len(tables.model.encoders))
        ]
        text = tables.encoder == len(tables.model.encoders)
        self._text_s = of_kind_s[:, :, text].sum(-1)[:, :, None, None]

    @property
    def text_s(self) -> float:
        """Seconds of computing of all stages for one of `text`."""
        return float(self._text_s.sum()) / self.mean_text

    def inputs_s(self, place: int, encoder: EncoderPrice) -> float:
        """Seconds of an encoder for one of its `inputs`.

        Args:
            place: Its number.
            encoder: Its price.
        """
        return encoder.both.total / self.mean_encoder[place]

    def passes(
        self, text: FloatArray, inputs: Sequence[FloatArray], tokens: FloatArray
    ) -> FloatArray:
        """Forward and backward passes, shape [2, num_stages, num_microbatches, num_replicas].

        Args:
            text: Sum of `text` over each microbatch, shape [num_microbatches, num_replicas].
            inputs: The same of `inputs`, for each encoder.
            tokens: Tokens of each microbatch, of the same shape.
        """
        found: FloatArray = self._text_s * (text / self.mean_text)
        for own_s, load, mean in zip(self._inputs_s, inputs, self.mean_inputs, strict=True):
            found = found + own_s * (load / mean)
        return found + self._messages.seconds(tokens / self.mean_tokens, found)
