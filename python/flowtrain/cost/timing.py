"""How long a layer takes: the interface, and the estimate from the data sheet of an accelerator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from flowtrain.cost.layers import Counts, Layer, Product, Unit


@dataclass(frozen=True, kw_only=True, slots=True)
class PassSeconds:
    """Seconds of a layer for one packed row, or one batch of images, on one rank.

    Attributes:
        forward: Forward pass.
        backward_input: Gradient of the input, and both gradients of products of activations.
        backward_weight: Gradient of the weights.
        attention: Part of the forward pass that products of activations take.
    """

    forward: float
    backward_input: float
    backward_weight: float
    attention: float = 0.0


class Timing(Protocol):
    """How long a layer takes."""

    def seconds(
        self, layer: Layer, counts: Counts, *, tp: int = 1, cp: int = 1, ep: int = 1
    ) -> PassSeconds:
        """Seconds of the passes of a layer. Callers leave out passes that a layer does not have.

        Args:
            layer: The layer.
            counts: Of the whole row.
            tp: Ranks that share the width of the layer.
            cp: Ranks that share the tokens of the row.
            ep: Ranks that share the experts, each of which has as many rows.

        Raises:
            ValueError: The row is outside of the range in which the times are valid.
        """
        ...


_ROWS: dict[Unit, Unit] = {
    "pairs": "tokens",
    "vision_pairs": "vision_tokens",
    "window_pairs": "vision_tokens",
}
"""Queries of each kind of attention."""

_ATTENTION_BACKWARD = 2.5
"""Backward FLOPs of fused attention in forward ones: five products in place of two, as the scores
are computed again."""

_TRAFFIC = 2
"""Times that a tensor is moved in a pass: written by one operator, and read by another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Efficiency:
    """Share of the peak that a class of products reaches: maximum x n / (n + half).

    Attributes:
        maximum: Share that very large products reach.
        half: Size n at which half of it is reached.
        smallest: Smallest n for which the share is valid.
        source: Where the values are from.
    """

    maximum: float
    half: float
    smallest: float
    source: str

    def __post_init__(self) -> None:
        if not 0 < self.maximum <= 1 or not 0 <= self.half < math.inf:
            raise ValueError(
                f"efficiency: maximum={self.maximum} must be above 0 and at most 1, and "
                f"half={self.half} must be 0 or more, and finite"
            )

    def share(self, n: float) -> float:
        """Share of the peak at size n."""
        return self.maximum * n / (n + self.half)


def linear_efficiency(maximum: float, source: str) -> Efficiency:
    """Efficiency of products with a weight.

    The size n is the smaller one of the rows and of the divided side of the weight on a rank.

    Args:
        maximum: Share of the peak that very large products reach within training.
        source: Where it is from.
    """
    return Efficiency(maximum=maximum, half=256, smallest=64, source=source)


def attention_efficiency(maximum: float, source: str) -> Efficiency:
    """Efficiency of products of two activations, by a fused kernel for packed documents.

    The size n is the mean number of keys of a query in a call.

    Args:
        maximum: Share of the peak that attention to very many keys reaches.
        source: Where it is from.
    """
    return Efficiency(maximum=maximum, half=256, smallest=1, source=source)


_UNKNOWN = "assumption: no training on such a device was compared with it"
LINEAR = linear_efficiency(0.7, _UNKNOWN)
"""Products with a weight, where nothing is known of the device."""

ATTENTION = attention_efficiency(0.45, _UNKNOWN)
"""Products of two activations, where nothing is known of the device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSheetTiming:
    """Times from peak rates, for plans of machines that are not at hand.

    A product takes its FLOPs over the peak and the efficiency of its class, and no less than its
    weights take to be read. Tensor parallelism divides a side of its weight, context parallelism
    its rows: its rate is limited by the smaller one of both. Rows are spread evenly over experts,
    and count those of one expert. Operators between products move what autograd keeps of the layer
    once in and once out of memory. Launches of kernels are hidden.

    Tensor parallelism divides heads. With context parallelism keys and values go round in cp
    parts: a query meets as many keys in all, in cp calls. Documents are cut into 2 cp parts, of
    which each rank has one from the front and one from behind, so that ranks have equal work.

    Attributes:
        flops_per_s: Peak in the dtype of the products.
        memory_bytes_per_s: Peak rate of the memory.
        linear: Efficiency of products with a weight; n is the smaller one of the rows of the
            product, or of one of its experts, and the side of the weight that is divided.
        attention: Efficiency of attention; n is the mean number of keys of a query in a call.
        itemsize: Bytes of a value.
        extrapolates: Whether sizes below the range of an efficiency are allowed.

    Source: the efficiency of DFLOP's and Entrain's surrogates, which keep attention apart; Liu,
    Zaharia and Abbeel (2023), Ring Attention with Blockwise Transformers; Brandon et al. (2023),
    Striped Attention, and Transformer Engine for the equal parts.
    """

    flops_per_s: float
    memory_bytes_per_s: float
    linear: Efficiency = LINEAR
    attention: Efficiency = ATTENTION
    itemsize: int = 2
    extrapolates: bool = False

    def __post_init__(self) -> None:
        for name in ("flops_per_s", "memory_bytes_per_s", "itemsize"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"{name}={value}: it must be above 0, and finite")

    def seconds(
        self, layer: Layer, counts: Counts, *, tp: int = 1, cp: int = 1, ep: int = 1
    ) -> PassSeconds:
        """Seconds of the passes of a layer, as `Timing` says."""
        for name, ranks in (("tp", tp), ("cp", cp), ("ep", ep)):
            if ranks < 1:
                raise ValueError(f"{name}={ranks}: it must be at least 1")
        linear = trained = attention = 0.0
        for product in layer.products:
            if count := _count(counts, product.unit):
                if product.has_weight:
                    seconds = self._linear_s(layer, product, count / cp, tp, ep)
                    linear += seconds
                    trained += 0.0 if product.frozen else seconds
                else:
                    attention += self._attention_s(layer, product, counts, tp, cp)
        moved_s = _TRAFFIC * self._kept_bytes(layer, counts) / (tp * cp) / self.memory_bytes_per_s
        return PassSeconds(
            forward=linear + attention + moved_s,
            backward_input=linear + _ATTENTION_BACKWARD * attention + moved_s,
            backward_weight=trained,
            attention=attention,
        )

    def _linear_s(self, layer: Layer, product: Product, rows: float, tp: int, ep: int) -> float:
        weights, what = 1.0, "rows of a rank"
        if product.experts_per_chosen > 1:
            weights, what = product.experts_per_chosen / ep, "rows of an expert"
        each = rows / weights
        self._check(layer, self.linear, each, what)
        smaller = min(each, product.side / tp) if product.side else each
        flops = product.flops_of_rank(tp)
        compute_s = flops * rows / (self.flops_per_s * self.linear.share(smaller))
        values = max(weights * flops / 2, rows * product.moves / tp)
        return max(compute_s, values * self.itemsize / self.memory_bytes_per_s)

    def _attention_s(
        self, layer: Layer, product: Product, counts: Counts, tp: int, cp: int
    ) -> float:
        pairs = _count(counts, product.unit)
        keys = pairs / _count(counts, _ROWS[product.unit]) / cp
        self._check(layer, self.attention, keys, "keys of a query")
        flops = product.flops * pairs / (tp * cp)
        return flops / (self.flops_per_s * self.attention.share(keys))

    def _kept_bytes(self, layer: Layer, counts: Counts) -> float:
        return sum(
            saved.values * (saved.itemsize or self.itemsize) * _count(counts, saved.unit)
            for saved in layer.saved or ()
            if not saved.joins
        )

    def _check(self, layer: Layer, efficiency: Efficiency, n: float, what: str) -> None:
        if n < efficiency.smallest and not self.extrapolates:
            raise ValueError(
                f"{layer.name}: {n:.4g} {what} are fewer than the {efficiency.smallest:g} from "
                "which the times are valid; raise train.global_batch or train.microbatch_tokens, "
                "give measured times (`flowtrain profile`), or set DataSheetTiming.extrapolates"
            )


def _count(counts: Counts, unit: Unit) -> float:
    return counts[Counts._fields.index(unit)]
