"""A model with LoRA adapters, as the planner sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import compress
from typing import Any

import torch

from flowtrain.cost.layers import Layer, Product, Saved
from flowtrain.models.family import Family
from flowtrain.models.parameter_layers import layer_of
from flowtrain.plan.describe import ModelDescription

# Memory traffic of an adapter, in units of its layer's inputs and outputs; a typical value: the
# input is read, and an output is written, read, and added to that of the layer.
_MOVES = 2


def with_lora(
    model: ModelDescription, family: Family, ranks: Mapping[str, int]
) -> ModelDescription:
    """The model with an adapter at each linear layer of some parts, which alone train there.

    Adapters are in the dtype of the model, without dropout. The output head has none, and neither
    have routers and experts.

    Args:
        model: Description of the model.
        family: What it was made from.
        ranks: Rank of the adapters by part.

    Source: Hu et al. (2021), LoRA, arXiv 2106.09685; the layers are those of `all-linear` of PEFT.
    """
    sides, adapters = [0] * len(model.layers), [0] * len(model.layers)
    meta: Any = family.meta_model()
    head = meta.get_output_embeddings()
    for name, module in meta.named_modules():
        if isinstance(module, torch.nn.Linear) and module is not head:
            number = layer_of(f"{name}.weight", model.layers, family)
            sides[number] += module.in_features + module.out_features
            adapters[number] += 1
    layers, parameters, unused = [], [], []
    of_model = zip(model.layers, model.parameters, model.unused, sides, adapters, strict=True)
    for layer, total, never, values, count in of_model:
        rank = ranks.get(layer.part, 0)
        layers.append(_adapted(layer, rank, values=values, count=count) if rank else layer)
        parameters.append(total + rank * values)
        unused.append(total if rank else never)
    if "backbone" in ranks:
        first = next(n for n, layer in enumerate(layers) if layer.part == "backbone" and sides[n])
        layers[first] = _behind_frozen(layers[first])
    notes = []
    for part, rank in ranks.items():
        own = [layer.part == part for layer in model.layers]
        notes.append(
            f"LoRA of rank {rank} at {sum(compress(adapters, own))} linear layers of {part}, in "
            "the dtype of the model, without dropout"
        )
    return replace(
        model,
        layers=tuple(layers),
        parameters=tuple(parameters),
        unused=tuple(unused),
        estimated=(*model.estimated, *notes),
    )


def _adapted(layer: Layer, rank: int, *, values: int, count: int) -> Layer:
    """A layer whose weights stay as they are.

    Args:
        layer: The layer.
        rank: Rank of its adapters.
        values: Inputs and outputs of its linear layers, in all.
        count: Its linear layers.
    """
    products = tuple(replace(product, frozen=product.has_weight) for product in layer.products)
    saved = layer.saved
    if not count:
        if saved is not None:
            # An output head in chunks keeps its input nevertheless.
            saved = tuple(
                replace(each, needed_by="chunks") if each.needed_by == "weight" else each
                for each in saved
            )
        return replace(layer, products=products, saved=saved)
    unit = layer.takes[0] if layer.takes else layer.products[0].unit
    adapter = Product(unit, 2.0 * rank * values, moves=_MOVES * values)
    if saved is not None:
        inputs = (each for each in saved if not each.of_experts)
        saved = (*inputs, Saved(unit, rank * count, "weight"))
    return replace(layer, products=(*products, adapter), saved=saved)


def _behind_frozen(layer: Layer) -> Layer:
    """The first block of a decoder whose embedding is frozen: its input needs no gradient."""
    first, *others = layer.products
    return replace(layer, products=(replace(first, is_first=True), *others))
