"""Towers whose heads no tensor parallelism divides, such as the 25 of InternViT-6B."""

from __future__ import annotations

import math
from dataclasses import replace

from flowtrain.cost.layers import Layer
from flowtrain.plan.describe import ModelDescription

MOST_PADDING = 4 / 3
"""Heads of a padded tower over its own, at most."""


def padding(heads: int, tp: int) -> float:
    """Heads that `tp` divides over those of the tower: 1 if it divides them."""
    return math.ceil(heads / tp) * tp / heads


def padded(model: ModelDescription, tp: int) -> ModelDescription:
    """The model with heads of zeros in its towers, so that tensor parallelism divides them.

    Blocks of a tower take and hold as much more as it has more heads. This overestimates their
    MLPs, which are not padded.

    Args:
        model: The model.
        tp: Ranks that share the heads.

    Source: Megatron-LM, examples/multimodal/layer_specs.py and config.py, for InternViT-6B.
    """
    layers, parameters, unused = list(model.layers), list(model.parameters), list(model.unused)
    for encoder in model.encoders:
        factor = padding(encoder.heads, tp)
        for number in range(encoder.first, encoder.end):
            if model.layers[number].takes is not None and factor > 1:
                layers[number] = _larger(model.layers[number], factor)
                parameters[number] = math.ceil(factor * parameters[number])
                unused[number] = math.ceil(factor * unused[number])
    return replace(model, layers=tuple(layers), parameters=tuple(parameters), unused=tuple(unused))


def _larger(layer: Layer, factor: float) -> Layer:
    products = tuple(
        replace(
            each,
            flops=factor * each.flops,
            moves=factor * each.moves,
            side=factor * each.side,
            kv_flops=factor * each.kv_flops,
        )
        for each in layer.products
    )
    saved = tuple(replace(each, values=factor * each.values) for each in layer.saved or ())
    return replace(layer, products=products, saved=saved)
