"""Times and sizes of the layers of a model, for one microbatch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast, get_args

import numpy
from numpy.typing import ArrayLike

from flowtrain.plan.arrays import BoolArray, FloatArray, IntArray, integers, seconds, shaped

Level = Literal["none", "selective", "full"]
"""What a stage recomputes in the backward pass: nothing, cheap parts of each layer, or each layer
from its input."""

LEVELS: tuple[Level, ...] = get_args(Level)

_MAX_LAYERS = 256  # The table of stages has up to a seventh of the cube of this.
_MAX_BITS = 40  # Of a size in bytes.


@dataclass(frozen=True, kw_only=True, slots=True)
class Tap:
    """Output of a layer that a later layer reads too, such as one of deepstack.

    The stages between the two pass it on, so each cut between them costs its transfer.

    Attributes:
        source: Number of the layer that makes it.
        target: Number of the last layer that reads it.
        bytes: Size for one microbatch.
    """

    source: int
    target: int
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Layers:
    """Layers of a model in order, with what each costs for one microbatch on one stage's devices.

    Embedding and output head are layers of their own, or part of the first and last layer.

    Attributes:
        forward_s: Seconds of the forward pass, shape [num_layers].
        backward_input_s: Seconds of the gradient of the input, shape [num_layers].
        backward_weight_s: Seconds of the gradient of the weights, shape [num_layers].
        trained: Which layers train, shape [num_layers]. A frozen layer has no gradient of weights;
            it has none of its input either, saves no activations and recomputes nothing, if no
            layer before it trains.
        state_bytes: Weights, gradients and optimizer state, integers of shape [num_layers].
        activation_bytes: Activations saved for the backward pass by level, integers of shape
            [num_levels, num_layers], in the order of LEVELS.
        recompute_s: Seconds of recomputation in the backward pass by level, shape
            [num_levels, num_layers]; 0 for "none".
        output_bytes: What a layer passes to the next one, integers of shape [num_layers].
        taps: Outputs that layers other than the next one read.
    """

    forward_s: FloatArray
    backward_input_s: FloatArray
    backward_weight_s: FloatArray
    trained: BoolArray
    state_bytes: IntArray
    activation_bytes: IntArray
    recompute_s: FloatArray
    output_bytes: IntArray
    taps: tuple[Tap, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        forward_s: ArrayLike,
        backward_input_s: ArrayLike,
        backward_weight_s: ArrayLike,
        trained: ArrayLike | bool = True,
        state_bytes: ArrayLike,
        activation_bytes: ArrayLike,
        recompute_s: ArrayLike,
        output_bytes: ArrayLike,
        taps: Iterable[Tap] = (),
    ) -> Layers:
        """Layers of lists or arrays; one number holds for all layers.

        Raises:
            ValueError: A shape differs from that of `forward_s`, a value is negative or not finite,
                a size is no integer or exceeds 2^40, "none" recomputes, or a tap does not lead
                forward.
        """
        shape = numpy.shape(forward_s)
        if len(shape) != 1 or not 1 <= shape[0] <= _MAX_LAYERS:
            raise ValueError(
                f"forward_s: shape must be [num_layers], 1 to {_MAX_LAYERS}, not {list(shape)}"
            )
        count = shape[0]
        one, by_level = (count,), (len(LEVELS), count)
        layers = cls(
            forward_s=seconds("forward_s", forward_s, one),
            backward_input_s=seconds("backward_input_s", backward_input_s, one),
            backward_weight_s=seconds("backward_weight_s", backward_weight_s, one),
            trained=_booleans("trained", trained, one),
            state_bytes=_sizes("state_bytes", state_bytes, one),
            activation_bytes=_sizes("activation_bytes", activation_bytes, by_level),
            recompute_s=seconds("recompute_s", recompute_s, by_level),
            output_bytes=_sizes("output_bytes", output_bytes, one),
            taps=tuple(taps),
        )
        if layers.recompute_s[0].any():
            raise ValueError(
                f"recompute_s[0]: level 'none' recomputes nothing, not "
                f"{layers.recompute_s[0].max()} s; rows are in the order of {', '.join(LEVELS)}"
            )
        for number, tap in enumerate(layers.taps):
            if not 0 <= tap.source < tap.target < count:
                raise ValueError(
                    f"taps[{number}]: source={tap.source} must be before target={tap.target}, both "
                    f"from 0 to {count - 1}"
                )
            _sizes(f"taps[{number}].bytes", tap.bytes, ())
        return layers

    def __len__(self) -> int:
        return len(self.forward_s)

    @property
    def has_backward(self) -> BoolArray:
        """Whether a layer, or one before it, trains; shape [num_layers]."""
        return cast(BoolArray, numpy.logical_or.accumulate(self.trained))

    def backward_s(self) -> FloatArray:
        """Seconds of the backward pass without recomputation, shape [num_layers]."""
        weight_s = numpy.where(self.trained, self.backward_weight_s, 0.0)
        return numpy.where(self.has_backward, self.backward_input_s, 0.0) + weight_s

    def extra_s(self) -> FloatArray:
        """Seconds of recomputation, shape [num_levels, num_layers]."""
        return numpy.where(self.has_backward, self.recompute_s, 0.0)

    def saved_bytes(self) -> IntArray:
        """Activations saved from forward to backward pass, shape [num_levels, num_layers]."""
        return numpy.where(self.has_backward, self.activation_bytes, 0)

    def cut_bytes(self) -> tuple[IntArray, IntArray]:
        """Bytes across a cut behind each layer, forward and backward, each of shape [num_layers].

        No gradient crosses a cut behind layers that are all frozen, nor that of a tap whose source
        and all layers before it are. Behind the last layer nothing is sent.
        """
        forward = self.output_bytes.copy()
        has_backward = self.has_backward
        backward = numpy.where(has_backward, self.output_bytes, 0)
        for tap in self.taps:
            forward[tap.source : tap.target] += tap.bytes
            if has_backward[tap.source]:
                backward[tap.source : tap.target] += tap.bytes
        forward[-1] = backward[-1] = 0
        return forward, backward


def _booleans(name: str, values: ArrayLike, shape: tuple[int, ...]) -> BoolArray:
    array = shaped(name, values, shape)
    if array.dtype.kind not in "biu":
        raise ValueError(f"{name}: values must be true or false, not of dtype {array.dtype}")
    return array.astype(bool)


def _sizes(name: str, values: ArrayLike, shape: tuple[int, ...]) -> IntArray:
    return integers(name, values, shape, high_bits=_MAX_BITS)
