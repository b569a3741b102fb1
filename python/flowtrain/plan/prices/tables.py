"""What layers take and keep, once for each kind of layer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy

from flowtrain.cost.activations import layer_bytes
from flowtrain.cost.communication import Mesh
from flowtrain.cost.layers import PARTS, Counts, ForwardFlops, Layer
from flowtrain.cost.states import state_bytes
from flowtrain.cost.timing import Timing
from flowtrain.plan.arrays import FloatArray, IntArray
from flowtrain.plan.describe import ModelDescription
from flowtrain.plan.partition import LEVELS
from flowtrain.plan.prices.row import Row
from flowtrain.plan.work import Work

_SAMPLE = 1 << 20  # Parameters from which the bytes of one are computed.


class Tables:
    """Layers by kind: those that differ in nothing but their name are one kind.

    Arrays have the shape [num_kinds], unless another is given.

    Attributes:
        kind: Kind of each layer, shape [num_layers].
        first: Number of the first layer of each kind.
        embedding: Kind of the embedding of the decoder, the first layer of the backbone.
        head: Kind of the output head, the last layer.
        encoder: Number of its encoder; that of encoders for layers of the backbone.
        vision: Whether it is in front of the backbone.
        block: Whether it is a block, which can be computed again from its input.
        sparse: Whether it has experts.
        gradient: Whether it has a backward pass.
        parameters: Parameters outside of experts.
        experts: Parameters in experts.
        keys: Parameters of keys and values among those outside of experts, and those of them that
            train, shape [2, num_kinds].
        kept_keys: Bytes of keys and values that a layer keeps of a token of the decoder.
        trained: Parameters outside of experts that train.
        trained_experts: The same in experts.
        state: Bytes of weight, master weight, gradient and moments of a parameter that trains,
            shape [4].
        exact_itemsize: Bytes of a logit in the loss.
        tied: Parameters of the copy of the embedding that a tied output head has on another stage,
            and those of them that train, shape [2].
        share: Means of the samples.
        tower_tokens_per_token: Tokens of the tower for each that its encoder makes; 0 in the
            backbone.
        tower_width: Values of a token of the tower; 0 in the backbone.
        collectives: How often tensor parallelism gathers or scatters in a pass, by what is moved:
            tokens of the decoder, target tokens, tokens of the tower, and tokens that its encoder
            makes; shape [4, num_kinds].
        kept_per_token: Bytes that a layer keeps of a token of the decoder, if blocks recompute as
            each of LEVELS says, shape [3, num_kinds]; 0 in front of the backbone.
        kept_per_target: The same of a target token.
        kept_per_encoded_token: The same of a token that an encoder makes, in front of the backbone.
        kept_with_chunks: Bytes that the output head keeps of a target token if it goes in chunks.
    """

    def __init__(self, model: ModelDescription, work: Work, timing: Timing) -> None:
        self.model, self.work, self._timing = model, work, timing
        self.share = work.share
        of_layer = [len(model.encoders)] * len(model.layers)
        for place, encoder in enumerate(model.encoders):
            of_layer[encoder.first : encoder.end] = [place] * (encoder.end - encoder.first)
        kinds: dict[Hashable, int] = {}
        numbers = []
        for number, layer in enumerate(model.layers):
            key = (
                of_layer[number],
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
        self.encoder = numpy.array(of_layer)[self.first]
        layers = [model.layers[number] for number in self.first]
        before = {p: any(q in work.trained for q in PARTS[:i]) for i, p in enumerate(PARTS)}
        trains = numpy.array([layer.part in work.trained for layer in layers])
        reaches = numpy.array([layer.reaches_loss for layer in layers])
        earlier = numpy.array([before[layer.part] for layer in layers])
        self.vision = self.encoder < len(model.encoders)
        self.block = numpy.array([layer.takes is not None for layer in layers])
        self.gradient = (trains | earlier) & reaches
        self._weight_gradient = trains & reaches
        # In front of the cut, only features that are not in a cache are computed.
        hits = numpy.where(self.vision & ~self.gradient, work.cache_hits, 0.0)
        self._computed = 1.0 - hits
        self._input_gradient = self.gradient * numpy.where(earlier, 1.0, self._behind_first())
        total, experts, unused = (
            numpy.array([values[number] for number in self.first], numpy.float64)
            for values in (model.parameters, model.experts, model.unused)
        )
        self.parameters, self.experts = total - experts, experts
        self.sparse = experts > 0
        self.trained_experts = numpy.where(trains & (unused < experts), experts, 0.0)
        self.trained = numpy.where(trains, total - unused - self.trained_experts, 0.0)
        of_sample = state_bytes(
            _SAMPLE,
            _SAMPLE,
            work.optim,
            itemsize=work.itemsize,
            stored_itemsize=work.stored_itemsize,
        )
        self.state = (
            numpy.array(
                [of_sample.weights, of_sample.masters, of_sample.gradients, of_sample.moments]
            )
            / _SAMPLE
        )
        # Cross entropies are computed in float32 at least.
        self.exact_itemsize = max(work.itemsize, 4)
        self.embedding = int(self.kind[model.encoders[-1].end])
        self.head = int(self.kind[-1])
        # A copy trains if the embedding does.
        self.tied = model.tied_parameters * numpy.array([1.0, self.trained[self.embedding] > 0])
        text = len(model.encoders)
        self.kept_per_token = self._bytes(Counts(tokens=1), text)
        self.kept_per_target = self._bytes(Counts(targets=1), text)
        self.kept_with_chunks = sum(
            head.kept
            for head in layer_bytes(
                model.layers[-1:],
                Counts(targets=1),
                work.trained,
                itemsize=work.itemsize,
                logit_bytes=0,
            )
        )
        each = [self.inputs(place, 1.0) for place in range(text)]
        self.tower_tokens_per_token = self.per_kind([counts.vision_tokens for counts in each])
        self.tower_width = self.per_kind([encoder.width for encoder in model.encoders])
        self.kept_per_encoded_token = numpy.zeros((len(LEVELS), len(self.first)))
        for place, counts in enumerate(each):
            self.kept_per_encoded_token += self._bytes(counts, place)
        self.keys = self._key_parameters(layers)
        self.collectives = self._collectives(layers)
        # Keys and values are kept with the rest of the layer, and not with its input.
        self.kept_keys = numpy.array(
            [
                2.0 * work.itemsize * model.kv_width * any(p.kv_flops for p in layer.products)
                for layer in layers
            ]
        ) * (self.kept_per_token[0] > self.kept_per_token[-1])
        self._passes: dict[Hashable, FloatArray | str] = {}  # Or why the times are not valid.

    def _key_parameters(self, layers: Sequence[Layer]) -> FloatArray:
        """Parameters of keys and values, and those that train, shape [2, num_kinds]."""
        found = numpy.zeros((2, len(layers)))
        for kind, layer in enumerate(layers):
            for product in layer.products:
                found[0, kind] += product.kv_flops / 2
                if layer.part in self.work.trained and not product.frozen:
                    found[1, kind] += product.kv_flops / 2
        return found

    def _collectives(self, layers: Sequence[Layer]) -> FloatArray:
        found = numpy.zeros((4, len(layers)))
        for kind, layer in enumerate(layers):
            if self.block[kind]:
                # In front of attention and MLP, and behind both.
                found[2 if self.vision[kind] else 0, kind] = 4
            elif self.vision[kind] and layer.products:
                # Behind the patches, or in front of the projector and behind it.
                found[2, kind] = 1
                found[3, kind] = layer.part == "projector"
        found[0, self.embedding] = found[1, self.head] = 1
        return found

    def per_kind(self, values: Sequence[float]) -> FloatArray:
        """A value for each encoder as one for each kind of its layers; 0 in the backbone."""
        return numpy.array([*values, 0.0], numpy.float64)[self.encoder]

    def sample_flops(self, layers: Sequence[int]) -> FloatArray:
        """Forward FLOPs of each sample of the workload, shape [num_samples].

        Args:
            layers: Numbers of the layers that are counted.
        """
        work, model = self.work, self.model
        tokens = work.workload.tokens.astype(numpy.float64)

        def flops(counts: Counts, first: int, end: int) -> float:
            chosen = [model.layers[number] for number in layers if first <= number < end]
            found = ForwardFlops(chosen)(counts)
            return found.encoder + found.projector + found.backbone

        # FLOPs are linear in all of these. Projectors have none for tokens of the backbone.
        every = (0, len(model.layers))
        found = (
            flops(Counts(tokens=1), *every) * tokens
            + flops(Counts(pairs=0.5), *every) * tokens**2
            + flops(Counts(targets=1), *every) * work.targets
        )
        for encoder in model.encoders:
            encoded = work.encoded_tokens(encoder.modality).astype(numpy.float64)
            own, shape = (encoder.first, encoder.end), encoder.shape
            inputs = numpy.maximum(work.inputs(encoder.modality), 1)
            found = found + flops(shape.counts(1.0, 0.0), *own) * encoded
            found = found + flops(shape.counts(0.0, 1.0), *own) * encoded**2 / inputs
        return found

    def heaviest_share(self, layers: Sequence[int]) -> float:
        """Share of the FLOPs of a step that its heaviest sample has, in the mean of drawn batches.

        Args:
            layers: Numbers of the layers that are counted.
        """
        flops = self.sample_flops(layers)
        heaviest = float(self.work.drawn(flops).max(axis=1).mean())
        return heaviest / max(self.work.batch * float(flops.mean()), 1.0)

    def count(self, layers: Sequence[int]) -> IntArray:
        """How many of some layers are of each kind."""
        return numpy.bincount(self.kind[list(layers)], minlength=len(self.first))

    def text_passes(self, tokens: float, mesh: Mesh) -> FloatArray:
        """Times of the backbone's layers for a row of mean samples, as `_passes_of`.

        Args:
            tokens: Tokens of the row.
            mesh: Ranks that share the layers, of which tp, cp and ep count.
        """

        def passes() -> FloatArray:
            documents = tokens / self.share.tokens
            counts = self.model.text_counts(self.share, rows=documents)
            if mesh.cp > 1:
                # Each document is filled up to a multiple of 2 cp tokens.
                counts = counts._replace(tokens=counts.tokens + documents * (2 * mesh.cp - 1) / 2)
            return self._passes_of(counts, mesh, len(self.model.encoders))

        return self._once(("text", tokens, mesh.tp, mesh.cp, mesh.ep), passes)

    def input_passes(self, encoder: int, tokens: float, tp: int) -> FloatArray:
        """Times of the layers of an encoder, as `_passes_of`.

        Args:
            encoder: Its number.
            tokens: Tokens that it makes.
            tp: Ranks that share the layers.
        """

        def passes() -> FloatArray:
            return self._passes_of(self.inputs(encoder, tokens), Mesh(tp=tp), encoder)

        return self._once((encoder, tokens, tp), passes)

    def _once(self, key: Hashable, passes: Callable[[], FloatArray]) -> FloatArray:
        """Times by a key: computed once, and so is the error of times that are not valid."""
        if key not in self._passes:
            try:
                self._passes[key] = passes()
            except ValueError as error:
                self._passes[key] = str(error)
        found = self._passes[key]
        if isinstance(found, str):
            raise ValueError(found)
        return found

    def row_passes(self, row: Row, mesh: Mesh) -> FloatArray:
        """Times of all layers for a row, as `_passes_of`.

        Context parallelism does not share out the layers in front of the backbone.
        """
        found = self.text_passes(row.tokens, mesh)
        for encoder, tokens in enumerate(row.encoded):
            found = found + self.input_passes(encoder, tokens, mesh.tp)
        return found

    def inputs(self, encoder: int, tokens: float) -> Counts:
        """Units of the inputs that give this many tokens of an encoder, for mean samples."""
        encoded = self.share.encoded[self.model.encoders[encoder].modality]
        if not encoded.tokens:
            return Counts()
        squares = tokens / encoded.tokens * encoded.squares
        return self.model.encoders[encoder].shape.counts(tokens, squares)

    def _passes_of(self, counts: Counts, mesh: Mesh, encoder: int) -> FloatArray:
        """Seconds of forward pass, backward pass, and attention in the forward pass.

        Kinds of other encoders, or of the backbone, have zeros.

        Returns:
            Shape [3, num_kinds].

        Raises:
            ValueError: As for `Timing.seconds`.
        """
        found = numpy.zeros((3, len(self.first)))
        for kind in numpy.flatnonzero(self.encoder == encoder) if any(counts) else ():
            layer = self.model.layers[self.first[kind]]
            took = self._timing.seconds(layer, counts, tp=mesh.tp, cp=mesh.cp, ep=mesh.ep)
            found[0, kind] = took.forward
            found[1, kind] = (
                self._input_gradient[kind] * took.backward_input
                + self._weight_gradient[kind] * took.backward_weight
            )
            found[2, kind] = took.attention
        return found * self._computed

    def _behind_first(self) -> FloatArray:
        """Share of the linear products whose input has a gradient if their part alone trains."""
        shares = []
        for number in self.first:
            linear = [p for p in self.model.layers[number].products if p.has_weight]
            whole = sum(product.flops for product in linear)
            own = sum(product.flops for product in linear if not product.is_first)
            shares.append(own / whole if whole else 1.0)
        return numpy.array(shares)

    def _bytes(self, counts: Counts, encoder: int) -> FloatArray:
        """Bytes that layers keep with each of LEVELS, shape [3, num_kinds].

        Kinds of other encoders, or of the backbone, have zeros.
        """
        found = numpy.zeros((len(LEVELS), len(self.first)))
        for row, level in enumerate(LEVELS):
            for kind in numpy.flatnonzero(self.encoder == encoder):
                for kept in layer_bytes(
                    [self.model.layers[self.first[kind]]],
                    counts,
                    self.work.trained,
                    itemsize=self.work.itemsize,
                    levels=[level],
                ):
                    found[row, kind] = kept.kept
        return found
