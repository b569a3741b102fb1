"""What layers take and keep, once for each kind of layer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy

from flowtrain.cost.activations import layer_bytes
from flowtrain.cost.layers import PARTS, Counts, ForwardFlops
from flowtrain.cost.states import state_bytes
from flowtrain.cost.timing import Timing
from flowtrain.plan.arrays import FloatArray, IntArray
from flowtrain.plan.describe import ModelDescription
from flowtrain.plan.work import Work

_SAMPLE = 1 << 20  # Parameters from which the bytes of one are computed.


class Tables:
    """Layers by kind: those that differ in nothing but their name are one kind.

    Arrays have the shape [num_kinds], unless another is given.

    Attributes:
        kind: Kind of each layer, shape [num_layers].
        first: Number of the first layer of each kind.
        vision: Whether it is in front of the backbone.
        block: Whether it is a block, which can be computed again from its input.
        sparse: Whether it has experts.
        gradient: Whether it has a backward pass.
        parameters: Parameters outside of experts.
        experts: Parameters in experts.
        trained: Parameters outside of experts that train.
        trained_experts: The same in experts.
        state: Bytes of weight, master weight, gradient and moments of a parameter that trains,
            shape [4].
        share: Means of the samples.
        vision_tokens_per_token: Tokens of the tower of a visual token.
        kept_per_token: Bytes that a layer keeps of a token of the decoder, all of it and only the
            input of blocks, shape [2, num_kinds]; 0 in front of the backbone.
        kept_per_target: The same of a target token.
        kept_per_visual_token: The same of a visual token in front of the backbone.
    """

    def __init__(self, model: ModelDescription, work: Work, timing: Timing) -> None:
        self.model, self.work, self._timing = model, work, timing
        self.share = work.share
        kinds: dict[Any, int] = {}
        numbers = []
        for number, layer in enumerate(model.layers):
            key = (
                layer.part,
                layer.products,
                layer.saved,
                layer.reaches_loss,
                layer.takes,
                model.parameters[number],
                model.experts[number],
                model.unused[number],
            )
            numbers.append(kinds.setdefault(key, len(kinds)))
        self.kind = numpy.array(numbers)
        self.first = numpy.array([numbers.index(kind) for kind in range(len(kinds))])
        layers = [model.layers[number] for number in self.first]
        before = {p: any(q in work.trained for q in PARTS[:i]) for i, p in enumerate(PARTS)}
        trains = numpy.array([layer.part in work.trained for layer in layers])
        reaches = numpy.array([layer.reaches_loss for layer in layers])
        earlier = numpy.array([before[layer.part] for layer in layers])
        self.vision = numpy.array([layer.part != "backbone" for layer in layers])
        self.block = numpy.array([layer.takes is not None for layer in layers])
        self.gradient = (trains | earlier) & reaches
        self._weight_gradient = trains & reaches
        self._input_gradient = self.gradient * numpy.where(earlier, 1.0, self._behind_first())
        total, experts, unused = (
            numpy.array([values[number] for number in self.first], numpy.float64)
            for values in (model.parameters, model.experts, model.unused)
        )
        self.parameters, self.experts = total - experts, experts
        self.sparse = experts > 0
        self.trained = numpy.where(trains, total - experts - unused, 0.0)
        self.trained_experts = numpy.where(trains, experts, 0.0)
        of_sample = state_bytes(_SAMPLE, _SAMPLE, work.optim, itemsize=work.itemsize)
        self.state = (
            numpy.array(
                [of_sample.weights, of_sample.masters, of_sample.gradients, of_sample.moments]
            )
            / _SAMPLE
        )
        self._flops = self._attention_flops()
        self.kept_per_token = self._bytes(Counts(tokens=1))
        self.kept_per_target = self._bytes(Counts(targets=1))
        image = self.images(1.0)
        self.vision_tokens_per_token = image.vision_tokens
        self.kept_per_visual_token = self._bytes(image)
        self._passes: dict[Any, FloatArray] = {}

    def sample_flops(self, parts: Collection[str]) -> FloatArray:
        """Forward FLOPs of each sample of the workload, shape [num_samples].

        Args:
            parts: Parts that are counted.
        """
        work, image = self.work, self.model.image
        tokens = work.workload.tokens.astype(numpy.float64)
        visual = work.workload.visual_tokens.astype(numpy.float64)
        layers = [layer for layer in self.model.layers if layer.part in parts]

        def flops(counts: Counts) -> float:
            found = ForwardFlops(layers)(counts)
            return found.encoder + found.projector + found.backbone

        # FLOPs are linear in all of these.
        return (
            flops(Counts(tokens=1)) * tokens
            + flops(Counts(pairs=0.5)) * tokens**2
            + flops(Counts(targets=1)) * work.targets
            + flops(image.counts(1.0, 0.0)) * visual
            + flops(image.counts(0.0, 1.0)) * visual**2 / numpy.maximum(work.images, 1)
        )

    def heaviest_share(self, parts: Collection[str]) -> float:
        """Share of the FLOPs of a step that its heaviest sample has, in the mean of drawn batches.

        Args:
            parts: Parts that are counted.
        """
        flops = self.sample_flops(parts)
        heaviest = float(self.work.drawn(flops).max(axis=1).mean())
        return heaviest / max(self.work.batch * float(flops.mean()), 1.0)

    def count(self, parts: tuple[str, ...]) -> IntArray:
        """Layers of each kind in some parts."""
        chosen = [layer.part in parts for layer in self.model.layers]
        return numpy.bincount(self.kind[chosen], minlength=len(self.first))

    def text_passes(self, tokens: float, shards: int, ep: int = 1) -> FloatArray:
        """Times of the backbone's layers for a row of mean samples, as `_passes_of`.

        Args:
            tokens: Tokens of the row.
            shards: Ranks that share the products.
            ep: Ranks that share the experts.
        """
        key = ("text", tokens, shards, ep)
        if key not in self._passes:
            counts = self.model.counts(self.share, rows=tokens / self.share.tokens)
            self._passes[key] = self._passes_of(counts, shards, vision=False, ep=ep)
        return self._passes[key]

    def image_passes(self, visual: float, shards: int) -> FloatArray:
        """Times of the layers in front of the backbone, as `_passes_of`.

        Args:
            visual: Visual tokens of the images.
            shards: Ranks that share the products.
        """
        key = ("images", visual, shards)
        if key not in self._passes:
            self._passes[key] = self._passes_of(self.images(visual), shards, vision=True)
        return self._passes[key]

    def images(self, visual: float) -> Counts:
        """What images of mean samples with this many visual tokens have."""
        if not self.share.visual:
            return Counts()
        squares = visual / self.share.visual * self.share.visual_squares
        return self.model.image.counts(visual, squares)

    def _passes_of(self, counts: Counts, shards: int, *, vision: bool, ep: int = 1) -> FloatArray:
        """Seconds of forward pass, backward pass and attention, shape [3, num_kinds].

        The attention is the part of the forward pass that attention has of its FLOPs. Kinds of the
        other side have zeros.

        Raises:
            ValueError: As for `Timing.seconds`.
        """
        found = numpy.zeros((3, len(self.first)))
        for kind in numpy.flatnonzero(self.vision == vision) if any(counts) else ():
            layer = self.model.layers[self.first[kind]]
            took = self._timing.seconds(layer, counts, shards=shards, ep=ep)
            found[0, kind] = took.forward
            found[1, kind] = (
                self._input_gradient[kind] * took.backward_input
                + self._weight_gradient[kind] * took.backward_weight
            )
        attention, rest = numpy.array(counts) @ self._flops
        found[2] = found[0] * attention / numpy.maximum(attention + rest, 1.0)
        return found

    def _behind_first(self) -> FloatArray:
        """Share of the linear products whose input has a gradient if their part alone trains."""
        shares = []
        for number in self.first:
            linear = [p for p in self.model.layers[number].products if p.has_weight]
            whole = sum(product.flops for product in linear)
            own = sum(product.flops for product in linear if not product.is_first)
            shares.append(own / whole if whole else 1.0)
        return numpy.array(shares)

    def _bytes(self, counts: Counts) -> FloatArray:
        """Bytes that layers keep, all of it and only the input of blocks, shape [2, num_kinds]."""
        layers = [self.model.layers[number] for number in self.first]
        found = numpy.zeros((2, len(layers)))
        for row, recompute in enumerate((False, True)):
            for kind, layer in enumerate(layers):
                for kept in layer_bytes(
                    [layer],
                    counts,
                    self.work.trained,
                    itemsize=self.work.itemsize,
                    recompute=recompute,
                ):
                    found[row, kind] = kept.kept
        return found

    def _attention_flops(self) -> FloatArray:
        """Forward FLOPs per unit, of attention and of the rest, shape [2, num_units, num_kinds]."""
        found = numpy.zeros((2, len(Counts._fields), len(self.first)))
        for kind, number in enumerate(self.first):
            for product in self.model.layers[number].products:
                unit = Counts._fields.index(product.unit)
                found[int(product.has_weight), unit, kind] += product.flops
        return found
