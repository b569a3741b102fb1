"""What autograd keeps of the forward pass, by layer.

Lists of tensors follow the modules of transformers: what the backward pass of each operator needs.
A tensor that several operators need is in one list.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from flowtrain.config.parallel import ParallelConfig, Recompute
from flowtrain.cost.layers import PARTS, Counts, Layer, Saved, Unit, check_parts

# Values that an activation function keeps for each value of its input.
_KEPT = {"gelu": 1, "gelu_pytorch_tanh": 1, "silu": 1, "quick_gelu": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerBytes:
    """Memory of the activations of a layer.

    Attributes:
        name: Path of the module in the Hugging Face model.
        part: `encoder`, `projector` or `backbone`.
        kept: Bytes kept from the forward pass to the backward pass.
        recomputed: Bytes that are made again when the backward pass reaches the layer, and freed
            behind it. Only those of one layer exist at a time.
    """

    name: str
    part: str
    kept: float
    recomputed: float


def layer_bytes(
    layers: Sequence[Layer],
    counts: Counts,
    trained: Collection[str],
    *,
    itemsize: int,
    levels: Sequence[Recompute] = (),
    joined: bool = False,
    logit_bytes: int | None = None,
) -> list[LayerBytes]:
    """Activation memory of a packed row with an image, layer by layer.

    Parameters, temporary tensors of an operator, and what the caller holds anyway (such as
    positions) are not counted.

    Args:
        layers: Layers of the model.
        counts: Of the row: the sum of those of its samples.
        trained: Parts that train.
        itemsize: Bytes of a value in the dtype of the model.
        levels: What each layer recomputes, as `levels_of` says; none of them if it is empty.
        joined: Whether several calls compute the attention of the documents in the decoder, or of
            the frames in the tower of a Qwen. Their outputs are then joined, which makes a copy.
            One kernel computes all documents on a CUDA device, and on a CPU short documents in
            float32, or else documents of equal length.
        logit_bytes: `train.logit_bytes`, with which the logits of a chunk of a row with more are
            recomputed; None for no limit.

    Raises:
        ValueError: `trained` names no part of a model, or what a layer keeps is not known.
    """
    check_parts(trained)
    before = {part: any(p in trained for p in PARTS[:i]) for i, part in enumerate(PARTS)}
    found = []
    for layer, level in zip(layers, levels or ["none"] * len(layers), strict=True):
        trains, gradient_before = layer.part in trained, before[layer.part]
        if layer.left_out or not layer.reaches_loss or not (trains or gradient_before):
            continue
        if layer.saved is None:
            raise ValueError(
                f"{layer.name}: what its backward pass keeps is not known; FLOPs alone are computed"
            )
        in_chunks = logit_bytes is not None and layer.logit_bytes(counts) > logit_bytes
        exists = {
            "gradient": True,
            # What is recomputed keeps its input, also if its weight does not train.
            "weight": trains or in_chunks,
            "input": gradient_before,
            "copy": not gradient_before,
            "chunks": in_chunks,
        }
        sizes = [
            (saved, saved.values * (saved.itemsize or itemsize) * _count(counts, saved.unit))
            for saved in layer.saved
            if exists[saved.needed_by] and (joined or not saved.joins)
        ]
        in_full = kept = sum(size for _, size in sizes)
        recomputed = 0.0
        if in_chunks:
            kept = sum(size for saved, size in sizes if not saved.in_chunks)
            recomputed = float(logit_bytes or 0)
        elif level != "none" and layer.takes is not None:
            unit, values = layer.takes
            kept = values * itemsize * _count(counts, unit)
            recomputed = in_full
            if level == "selective":
                of_attention = sum(size for saved, size in sizes if saved.of_attention)
                kept, recomputed = kept + of_attention, recomputed - of_attention
        found.append(LayerBytes(name=layer.name, part=layer.part, kept=kept, recomputed=recomputed))
    return found


def levels_of(layers: Sequence[Layer], parallel: ParallelConfig) -> list[Recompute]:
    """What each layer recomputes: those of a module that `parallel` asks for, from the first."""
    modules = {"encoder": parallel.encoder, "backbone": parallel.backbone}
    numbers = dict.fromkeys(modules, 0)
    found: list[Recompute] = []
    for layer in layers:
        module = modules.get(layer.part)
        if module is None or layer.takes is None or layer.left_out:
            found.append("none")
            continue
        asked = module.recompute_layers
        found.append(module.recompute if asked is None or numbers[layer.part] < asked else "none")
        numbers[layer.part] += 1
    return found


def _count(counts: Counts, unit: Unit) -> float:
    return counts[Counts._fields.index(unit)]


def layer_norm(unit: Unit, width: int) -> list[Saved]:
    """Input, mean and deviation of torch's layer norm."""
    return [Saved(unit, width), Saved(unit, 2)]


def rms_norm(unit: Unit, width: int, *, groups: int = 1) -> list[Saved]:
    """Input, and its scale in float32 (`models/rms_norm.py`).

    Args:
        unit: What it is repeated for.
        width: Values of the input.
        groups: Groups of these that are normalized apart, such as heads.
    """
    return [Saved(unit, width), Saved(unit, groups, itemsize=4)]


def attention(unit: Unit, *, heads: int, width: int, inputs: int) -> list[Saved]:
    """Query, key and value, and the output and log-sum-exp of fused attention.

    Args:
        unit: What it is repeated for.
        heads: Heads of the query.
        width: Values of the output.
        inputs: Values of query, key and value, as they are stored.
    """
    return [
        Saved(unit, inputs),
        Saved(unit, heads, itemsize=4, of_attention=True),
        Saved(unit, width, of_attention=True),
    ]


def mlp(unit: Unit, width: int, inner: int, *, activation: str, gated: bool) -> list[Saved] | None:
    """Two linear layers around an activation function, or three if it is gated.

    Args:
        unit: What it is repeated for.
        width: Values of the input.
        inner: Values between the linear layers.
        activation: Name of the function, `hidden_act` of a configuration.
        gated: Whether the function's output is multiplied by that of a linear layer.

    Returns:
        None if the function is not known.
    """
    if activation not in _KEPT:
        return None
    # SwiGLU computes the output of its activation function again (`models/swiglu.py`).
    values = _KEPT[activation] + 2 * gated - (gated and activation == "silu")
    return [
        Saved(unit, width, "weight"),
        Saved(unit, values * inner),
        Saved(unit, inner, "weight"),
    ]


def routed_mlp(
    unit: Unit, width: int, inner: int, *, activation: str, experts: int, chosen: int
) -> list[Saved] | None:
    """A router, and gated experts as transformers computes them with torch's grouped product.

    Args:
        unit: What it is repeated for.
        width: Values of the input.
        inner: Values between the linear layers of an expert.
        activation: As for `mlp`.
        experts: Number of experts.
        chosen: Number of them that a row is sent to.

    Returns:
        None if the function is not known.
    """
    if activation not in _KEPT:
        return None
    return [
        Saved(unit, width, "weight", of_experts=True),
        # Probabilities of all experts; those of the chosen ones, their sum, and their numbers.
        Saved(unit, experts + chosen + 1, itemsize=4),
        Saved(unit, chosen, itemsize=8),
        # Rows sorted by expert: their numbers, the way back, and the row that each is a copy of.
        Saved(unit, 3 * chosen, itemsize=8),
        Saved(unit, chosen * width, "weight", of_experts=True),
        # Gate and up in one tensor, and what the activation function keeps and returns.
        Saved(unit, chosen * (1 + _KEPT[activation] + 1) * inner),
        Saved(unit, chosen * inner, "weight", of_experts=True),
        # Outputs, and their weights in the sum over the experts of a row.
        Saved(unit, chosen * (width + 1)),
    ]
