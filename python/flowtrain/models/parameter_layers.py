"""Which layer of a model's list of layers a parameter is in."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from flowtrain.cost.layers import Layer
from flowtrain.models.family import Family


def layer_of(parameter: str, layers: Sequence[Layer], family: Family) -> int:
    """The layer that a parameter is in, or the first of its part that is nearest by name."""
    part = family.part_of(parameter)
    return max(
        (number for number, layer in enumerate(layers) if layer.part == part),
        key=lambda number: (_common(parameter, layers[number].name), -number),
    )


def _common(parameter: str, layer: str) -> int:
    """Words at the beginning of two paths that are the same."""
    pairs = zip(parameter.split("."), layer.split("."), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda words: words[0] == words[1], pairs))
