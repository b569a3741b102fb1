"""Times of what a rank computes, from a few measured rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowtrain.cost.layers import Counts, Layer
from flowtrain.cost.timing import DataSheetTiming, Efficiency, PassSeconds

# An AdamW step reads weight, gradient and two moments, and writes all but the gradient.
_OPTIMIZER_PASSES = 7
# Two gradients are read, and their sum is written.
_SUM_PASSES = 3
_CONSTANT = Efficiency(
    maximum=0.5,
    half=0,
    smallest=0,
    source="assumption: typical of training, whose products are smaller than the measured one; it "
    "changes estimates, and hardly the order of layouts",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Measured speed of one core.

    Attributes:
        flops: FLOP/s of a large matrix product.
        memory_bytes: Bytes per second that it reads and writes.
        pass_s: Seconds of a pass of a layer that do not depend on its size: calls of operators.
        reduce_bytes: Bytes per second that a rank sends in an all-reduce.
    """

    flops: float
    memory_bytes: float
    pass_s: float
    reduce_bytes: float


class RateTimes:
    """Times of layers and of the optimizer as `RankTimes`, estimated from rates.

    Args:
        rates: The rates.
        part_bytes: Bytes of the weights of each part that train if the part does.
        itemsize: Bytes of a value.
    """

    def __init__(self, rates: Rates, part_bytes: Mapping[str, float], *, itemsize: int) -> None:
        self._timing = DataSheetTiming(
            flops_per_s=rates.flops,
            memory_bytes_per_s=rates.memory_bytes,
            linear=_CONSTANT,
            attention=_CONSTANT,
            itemsize=itemsize,
        )
        self._pass_s = rates.pass_s
        self._part_s = {part: size / rates.memory_bytes for part, size in part_bytes.items()}

    def seconds(
        self, layer: Layer, counts: Counts, *, documents: Sequence[int] | None = None
    ) -> PassSeconds:
        """Seconds of the passes of a layer."""
        found = self._timing.seconds(layer, counts)
        if not layer.products or not any(counts):
            return found
        # A backward pass gives both gradients.
        return PassSeconds(
            forward=found.forward + self._pass_s,
            backward_input=found.backward_input + self._pass_s / 2,
            backward_weight=found.backward_weight + self._pass_s / 2,
            attention=found.attention,
        )

    def update_seconds(self, parts: Sequence[str]) -> float:
        """Seconds of the optimizer on some parts of the model."""
        return _OPTIMIZER_PASSES * sum(self._part_s[part] for part in parts)

    def accumulate_seconds(self, parts: Sequence[str]) -> float:
        """Seconds of adding the gradients of a microbatch to those of the ones before."""
        return _SUM_PASSES * sum(self._part_s[part] for part in parts)
