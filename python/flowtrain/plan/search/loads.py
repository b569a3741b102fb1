"""What each sample costs a plan, and how the times of its stages grow with that."""

from __future__ import annotations

import numpy

from flowtrain.plan.arrays import FloatArray
from flowtrain.plan.search.coupled import Priced

_TINY = 1e-30  # In place of a mean of 0, by which nothing is divided then.


class Loads:
    """Costs of the samples of a workload in a plan, and the times of a mean microbatch.

    The backbone's time grows with tokens and with tokens^2 by sample, in the shares that attention
    and the rest have of a mean microbatch; the encoder's grows with its FLOPs.

    Attributes:
        text: Cost of each sample to the backbone, shape [num_samples].
        images: FLOPs of each sample in front of the backbone, shape [num_samples].
        mean_text: Sum of `text` over a mean microbatch of a replica.
        mean_images: Sum of `images` over a mean microbatch of a replica.
        mean_encoder: Sum of `images` over what a replica of an encoder on its own computes at once.

    Args:
        priced: The plan.
    """

    def __init__(self, priced: Priced) -> None:
        work, pipeline, tables = priced.context.work, priced.pipeline, priced.context.tables
        mesh, share = pipeline.shape.mesh, work.share
        replica_slots = mesh.dp * pipeline.num_microbatches
        tokens = work.workload.tokens.astype(numpy.float64)
        count = pipeline.chain.layers_of_kind
        passes = tables.text_passes(pipeline.row.tokens, mesh.tp * mesh.cp, mesh.ep)
        attention = float(passes[2] @ count) / max(float(passes[0] @ count), _TINY)
        self.text = (1 - attention) * tokens / share.tokens
        self.text += attention * tokens**2 / share.squares
        self.mean_text = work.batch * float(self.text.mean()) / replica_slots
        self.images = tables.sample_flops(
            [number for number, layer in enumerate(tables.model.layers) if layer.part != "backbone"]
        )
        mean = max(float(self.images.mean()), _TINY)
        self.mean_images = work.batch * mean / replica_slots
        groups = pipeline.num_microbatches if priced.mode == "disaggregated" else 1
        replicas = 1 if priced.encoder is None else priced.encoder.shape.mesh.dp
        # The price is of no less than the largest image, taken as that share of the visual tokens.
        image = mean * work.largest_input_of("vision", groups)
        image /= max(share.encoded["vision"].tokens, _TINY)
        self.mean_encoder = max(work.batch * mean / (replicas * groups), image)
        self._split(priced)

    def _split(self, priced: Priced) -> None:
        """Passes of each stage, of the layers in front of the backbone and of the rest."""
        pipeline, cut = priced.pipeline, priced.cut
        costs, vision = pipeline.costs, priced.context.tables.vision
        images = []
        for kinds, stage in zip(pipeline.stage_counts(cut.stages), cut.stages, strict=True):
            again = costs.again[0] * (stage.recompute == "full")
            own = kinds * vision
            images.append((costs.forward[0].sum(0) @ own, (costs.backward[0].sum(0) + again) @ own))
        self._images_s = numpy.array(images).T[:, :, None, None]
        whole = numpy.array([cut.forward_s, cut.backward_s])[:, :, None, None]
        self._text_s = numpy.maximum(whole - self._images_s, 0.0)

    def passes(self, text: FloatArray, images: FloatArray) -> FloatArray:
        """Forward and backward passes, shape [2, num_stages, num_microbatches, num_replicas].

        Args:
            text: Sum of `text` over each microbatch, shape [num_microbatches, num_replicas].
            images: The same of `images`.
        """
        found: FloatArray = self._text_s * (text / self.mean_text)
        found = found + self._images_s * (images / self.mean_images)
        return found
