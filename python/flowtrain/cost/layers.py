"""A model as a list of layers, from which FLOPs are summed: by part for a sample, or by layer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from flowtrain.cost.flops import ModuleFlops

_FLOAT32_BYTES = 4

PARTS = ("encoder", "projector", "backbone")
"""Parts of a model, in the order in which the forward pass computes them."""

Unit = Literal[
    "patches",
    "vision_tokens",
    "vision_pairs",
    "window_pairs",
    "projected",
    "tokens",
    "pairs",
    "targets",
]
"""What the work of a layer is proportional to: a field of `Counts`."""


class Counts(NamedTuple):
    """How much of each unit a sample has.

    Attributes:
        patches: Patches that the vision tower embeds; of an audio tower, outputs of its
            convolutions.
        vision_tokens: Tokens of the tower: the patches, and class tokens; of an audio tower, the
            outputs that are no padding.
        vision_pairs: Pairs of a query and a key in layers of the tower with full attention.
        window_pairs: The same in layers whose attention is within windows, or chunks of audio.
        projected: Rows that the projector makes.
        tokens: Tokens of the decoder.
        pairs: Pairs of a query and a key in the decoder: the sum over documents of tokens^2, or
            half of it, since attention is causal.
        targets: Tokens on which the output head runs, and with it the output projection and the MLP
            of the last decoder layer.
    """

    patches: float = 0
    vision_tokens: float = 0
    vision_pairs: float = 0
    window_pairs: float = 0
    projected: float = 0
    tokens: float = 0
    pairs: float = 0
    targets: float = 0


@dataclass(frozen=True, slots=True)
class Product:
    """Matrix products of a layer.

    Attributes:
        unit: What they are repeated for.
        flops: Forward FLOPs per unit; a multiply-add is two.
        has_weight: Whether one factor is a weight. Otherwise both are activations, as in attention.
        is_first: Whether the product takes the input of its part as it is, with no parameter of
            the part in front: then it passes a gradient on only if a part before it trains.
        experts_per_chosen: Experts of the layer over those that a row is sent to; 1 for a product
            whose weight all rows take.
        frozen: Whether the weight stays as it is although its part trains, as beside an adapter.
        moves: Values that are read and written per unit, if that may take longer than the FLOPs.
        side: Values of the side of the weight that tensor parallelism divides, the harmonic mean
            over the FLOPs if there are several; 0 if that side does not limit the rate.
        kv_flops: FLOPs of keys and values among these. Ranks of tensor parallelism beyond their
            heads repeat them.
        kv_heads: Heads of these keys and values.
    """

    unit: Unit
    flops: float
    has_weight: bool = True
    is_first: bool = False
    experts_per_chosen: float = 1.0
    frozen: bool = False
    moves: float = 0.0
    # Times of a whole layer do not depend on these, and neither does the digest of a profile.
    side: float = field(default=0.0, repr=False)
    kv_flops: float = field(default=0.0, repr=False)
    kv_heads: int = field(default=1, repr=False)

    def flops_of_rank(self, tp: int) -> float:
        """FLOPs per unit on each of the ranks of tensor parallelism."""
        return (self.flops - self.kv_flops) / tp + self.kv_flops / min(tp, self.kv_heads)


Need = Literal["gradient", "weight", "input", "copy", "chunks"]
"""What needs a tensor in the backward pass: any gradient in the layer; the gradient of a weight, if
the part trains; the gradient of the input of the part, if something in front of the part trains.
`copy` is an input that another layer keeps as well if something in front trains; it is then counted
there. `chunks` is the input of a head whose weight does not train, which chunks need."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor that autograd keeps from the forward to the backward pass.

    Attributes:
        unit: What its size is proportional to.
        values: Values per unit.
        needed_by: What needs it.
        itemsize: Bytes of a value; None for the dtype of the model.
        joins: Whether it is a copy that exists only if several calls compute the attention of the
            row, because their outputs are then joined.
        of_attention: Whether the attention returns it: selective recomputation keeps it.
        in_chunks: Whether it is made in chunks, and again in the backward pass, if all of it in
            float32 is more than the limit of the logits.
        of_experts: Whether it is an input of a router or of experts, which no adapter takes.
    """

    unit: Unit
    values: float
    needed_by: Need = "gradient"
    itemsize: int | None = None
    joins: bool = False
    # The digest of a profile does not depend on these.
    of_attention: bool = field(default=False, repr=False)
    in_chunks: bool = field(default=False, repr=False)
    of_experts: bool = field(default=False, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """A module of the model.

    Attributes:
        name: Path of the module in the Hugging Face model.
        part: `encoder`, `projector` or `backbone`.
        products: Its matrix products.
        reaches_loss: Whether the loss depends on the output. Otherwise there is no backward pass.
        left_out: Whether only the plain model of transformers computes the layer, and FlowTrain
            does not, since nothing reads the output.
        saved: Tensors that autograd keeps; None if they are not known.
        takes: Unit and values of the input, if the layer can be recomputed from it.
    """

    name: str
    part: str
    products: tuple[Product, ...] = ()
    reaches_loss: bool = True
    left_out: bool = False
    saved: tuple[Saved, ...] | None = ()
    takes: tuple[Unit, int] | None = None

    def logit_bytes(self, counts: Counts) -> float:
        """Bytes of the logits of a row in float32; 0 unless the layer is an output head."""
        return sum(
            _FLOAT32_BYTES * saved.values * counts[Counts._fields.index(saved.unit)]
            for saved in self.saved or ()
            if saved.in_chunks
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerFlops:
    """FLOPs of a layer.

    Attributes:
        name: Path of the module in the Hugging Face model.
        part: `encoder`, `projector` or `backbone`.
        forward: Of the forward pass.
        backward: Of the backward pass, recomputation excluded.
    """

    name: str
    part: str
    forward: float
    backward: float


class ForwardFlops:
    """Forward FLOPs of samples by part: the layers of each part summed once.

    A planner asks for every sample, so that a call takes a few multiplications and no more.

    Args:
        layers: Layers of the model; those left out are not counted.
    """

    def __init__(self, layers: Iterable[Layer]) -> None:
        per_unit = {part: dict.fromkeys(Counts._fields, 0.0) for part in PARTS}
        for layer in layers:
            if not layer.left_out:
                for product in layer.products:
                    per_unit[layer.part][product.unit] += product.flops
        self._terms = [
            (part, i, flops)
            for part, name in enumerate(PARTS)
            for i, flops in enumerate(per_unit[name].values())
            if flops
        ]

    def __call__(self, counts: Counts) -> ModuleFlops:
        """Forward FLOPs of each part."""
        totals = [0.0] * len(PARTS)
        for part, i, flops in self._terms:
            totals[part] += counts[i] * flops
        return ModuleFlops(*totals)


def check_parts(trained: Collection[str]) -> None:
    """Refuse names that are no parts of a model.

    Raises:
        ValueError: There is such a name.
    """
    if unknown := sorted(set(trained) - set(PARTS)):
        raise ValueError(f"trained={unknown[0]!r} is no part; choose from {', '.join(PARTS)}")


def layer_flops(
    layers: Sequence[Layer],
    counts: Counts,
    trained: Collection[str],
    *,
    with_left_out: bool = False,
) -> list[LayerFlops]:
    """FLOPs that autograd computes, layer by layer.

    The backward pass of a product with a weight has two products of the same size: the gradient of
    the weight, if its part trains, and that of its input, if something in front of it trains. A
    product of two activations has both gradients if anything in front of it trains.

    Images are assumed to be in the packed row: gradients for the parts in front of the backbone
    pass through all of its tokens. A row of text alone has none.

    Args:
        layers: Layers of the model.
        counts: Of a sample, or of a packed row.
        trained: Parts that train.
        with_left_out: Count the layers that only the plain model of transformers computes.

    Raises:
        ValueError: `trained` names no part of a model.
    """
    check_parts(trained)
    before = {part: any(p in trained for p in PARTS[:i]) for i, part in enumerate(PARTS)}
    found = []
    for layer in layers:
        if layer.left_out and not with_left_out:
            continue
        trains, gradient_before = layer.part in trained, before[layer.part]
        forward = backward = 0.0
        for product in layer.products:
            flops = product.flops * counts[Counts._fields.index(product.unit)]
            forward += flops
            if not layer.reaches_loss:
                continue
            input_gradient = gradient_before or (trains and not product.is_first)
            if product.has_weight:
                backward += flops * ((trains and not product.frozen) + input_gradient)
            else:
                backward += flops * 2 * input_gradient
        found.append(
            LayerFlops(name=layer.name, part=layer.part, forward=forward, backward=backward)
        )
    return found
