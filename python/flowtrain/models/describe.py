"""Describes a model to the planner, from the configuration of a Hugging Face folder; no weights."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flowtrain.cost.decoder import decoder_layers
from flowtrain.cost.flops import Side
from flowtrain.cost.layers import Counts, Layer, Saved
from flowtrain.models.errors import ModelError
from flowtrain.models.family import Family
from flowtrain.models.folder import read_config
from flowtrain.models.lora import with_lora
from flowtrain.models.parameter_layers import layer_of
from flowtrain.models.qwen2_5_omni import TOWER, Qwen25OmniThinker
from flowtrain.models.registry import family_for, has_family
from flowtrain.models.tile_family import TileFamily
from flowtrain.models.versions import require_transformers
from flowtrain.plan.describe import Encoder, FarInput, InputShape, ModelDescription

# A grid of Qwen-VL whose numbers of patches are multiples of any window.
_LARGE_GRID = (1, 64, 64)
_ONE_TILE = (1, 1, 1)
# Chunks of a clip.
_LARGE_CLIP = 20
# Models that FlowTrain does not train, and the class that describes them.
_OMNI = "flowtrain.models.qwen2_5_omni:Qwen25OmniThinker"
_DESCRIBED_AS = {
    "qwen2_5_omni": _OMNI,
    "qwen2_5_omni_thinker": _OMNI,
}


def describe(
    folder: Path,
    *,
    projector_side: Side = "encoder",
    name: str | None = None,
    lora: Mapping[str, int] | None = None,
) -> ModelDescription:
    """Describe the model of a local Hugging Face folder; only its `config.json` is read.

    Args:
        folder: The folder.
        projector_side: The side of the cut on which the projector is computed.
        name: Name for reports; None is that of the folder.
        lora: Rank of LoRA adapters by part that has them.

    Raises:
        ModelError: As for `family_for`, or a rank is above the width of its part.
    """
    name = name or folder.resolve().name
    kind = read_config(folder).get("model_type")
    if kind not in _DESCRIBED_AS:
        family = family_for(folder, projector_side=projector_side)
    else:
        require_transformers()
        family = pkgutil.resolve_name(_DESCRIBED_AS[kind])(folder, projector_side=projector_side)
    model = describe_family(family, name=name)
    if kind in _DESCRIBED_AS and not has_family(kind):
        model = replace(model, untrained=kind)
    if not lora:
        return model
    _check_ranks(model, lora)
    return with_lora(model, family, lora)


def _check_ranks(model: ModelDescription, lora: Mapping[str, int]) -> None:
    """Require adapters that are narrower than what they adapt.

    Raises:
        ModelError: A rank is above the width of its part.
    """
    encoder = max(encoder.width for encoder in model.encoders)
    widths = {"encoder": encoder, "projector": max(encoder, model.width), "backbone": model.width}
    for part, rank in lora.items():
        if rank > widths[part]:
            raise ModelError(
                f"{model.name}: LoRA adapters {part}={rank}: a rank above the width of that part, "
                f"{widths[part]}, saves nothing; lower --lora {part}, or lora.{part}.rank"
            )


def describe_family(family: Family, *, name: str) -> ModelDescription:
    """Describe the model of a family.

    Args:
        family: The family, for one model folder.
        name: Name for reports.
    """
    text = family.config.get_text_config()
    layers, estimated = _with_estimates(family)
    kept = [layer for layer in layers if not layer.left_out]
    trainable = family.trainable_sizes()
    totals, experts, unused = ([0] * len(kept) for _ in range(3))
    for parameter, size in family.parameter_sizes().items():
        number = layer_of(parameter, kept, family)
        totals[number] += size
        experts[number] += size if ".experts." in parameter else 0
        unused[number] += 0 if parameter in trainable else size
    heads = text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    head = getattr(text, "head_dim", None) or text.hidden_size // heads
    return ModelDescription(
        name=name,
        layers=tuple(kept),
        parameters=tuple(totals),
        experts=tuple(experts),
        unused=tuple(unused),
        vocabulary=text.vocab_size,
        width=text.hidden_size,
        heads=heads,
        kv_heads=kv_heads,
        kv_width=kv_heads * head,
        num_experts=getattr(text, "num_experts", None) or 0,
        chosen_experts=getattr(text, "num_experts_per_tok", None) or 0,
        encoders=_encoders(family, kept),
        tied_parameters=0 if totals[-1] else text.vocab_size * text.hidden_size,
        far_inputs=_far_inputs(family, kept),
        estimated=estimated,
    )


def _encoders(family: Family, layers: Sequence[Layer]) -> tuple[Encoder, ...]:
    """The vision tower; with an audio tower behind it, both have the name of what they read."""
    vision = family.config.vision_config
    own = [layer for layer in layers if layer.part != "backbone"]
    end = sum(not layer.name.startswith(TOWER) for layer in own)
    images = Encoder(
        name="vision" if end < len(own) else "encoder",
        modality="vision",
        first=0,
        end=end,
        width=vision.hidden_size,
        heads=getattr(vision, "num_heads", None) or vision.num_attention_heads,
        row_width=family.row_width,
        projector_side=family.projector_side,
        shape=_input_shape(family),
    )
    if not isinstance(family, Qwen25OmniThinker):
        return (images,)
    audio = family.config.audio_config
    clip = family.audio_counts(_LARGE_CLIP * 2 * audio.n_window)
    clips = Encoder(
        name="audio",
        modality="audio",
        first=end,
        end=len(own),
        width=audio.d_model,
        heads=audio.encoder_attention_heads,
        row_width=family.audio_row_width,
        projector_side=family.projector_side,
        shape=InputShape(per_token=Counts(*(value / clip.projected for value in clip))),
    )
    return images, clips


def _input_shape(family: Family) -> InputShape:
    if isinstance(family, TileFamily):
        tile = family.counts(0, [_ONE_TILE], num_targets=0)
        return InputShape(tile_tokens=round(tile.projected), per_tile=tile)
    image = family.counts(0, [_LARGE_GRID], num_targets=0)
    tokens = image.projected
    return InputShape(
        per_token=Counts(*(value / tokens for value in image._replace(vision_pairs=0))),
        per_pair=Counts(vision_pairs=image.vision_pairs / tokens**2),
    )


def _far_inputs(family: Family, layers: Sequence[Layer]) -> tuple[FarInput, ...]:
    """Outputs of layers that are read further behind.

    These are the taps of deepstack, from a block of the tower to its merger, and on to the decoder;
    and rows of an encoder in front of another one.
    """
    vision = family.config.vision_config
    number_of = {layer.name: number for number, layer in enumerate(layers)}
    found = []
    *before, last = _encoders(family, layers)
    for encoder in before:
        width = family.config.get_text_config().hidden_size
        rows = FarInput(source=encoder.end - 1, target=last.end, unit="projected", values=width)
        found.append(rows)
    for i, block in enumerate(getattr(vision, "deepstack_visual_indexes", None) or ()):
        merger = f"model.visual.deepstack_merger_list.{i}"
        decoder = f"model.language_model.layers.{i}"
        if merger not in number_of or not layers[number_of[merger]].reaches_loss:
            continue
        source, target = number_of[f"model.visual.blocks.{block}"], number_of[merger]
        found += [
            FarInput(source=source, target=target, unit="vision_tokens", values=vision.hidden_size),
            FarInput(
                source=target,
                target=number_of[decoder],
                unit="projected",
                values=vision.out_hidden_size,
            ),
        ]
    return tuple(found)


def _with_estimates(family: Family) -> tuple[Sequence[Layer], tuple[str, ...]]:
    """Layers, with estimates of what autograd keeps of those of which it is not known.

    An unknown layer with experts keeps what a dense one keeps whose MLP is as wide as the experts
    of a token together, and the token twice more for each of these: as it is sent, and as it
    returns. A block of a tower of tiles keeps what one with RMS norms and no others keeps.
    """
    text = family.config.get_text_config()
    estimates: dict[str, tuple[Saved, ...] | None] = {}
    notes = []
    unknown = [layer for layer in family.layers if layer.saved is None]
    has_experts = bool(getattr(text, "num_experts", None))
    if has_experts:
        notes.append("layers with experts: rows are spread evenly over experts")
    if has_experts and any(layer.part == "backbone" for layer in unknown):
        chosen = text.num_experts_per_tok
        dense = SimpleNamespace(
            **_sizes(text),
            model_type="qwen3",
            intermediate_size=chosen * text.moe_intermediate_size,
            num_experts=0,
        )
        copies = Saved("tokens", 2 * chosen * text.hidden_size)
        for layer in decoder_layers(dense):
            estimates[layer.name] = (*(layer.saved or ()), copies)
        notes.append(
            "activations of layers with experts: those of a dense layer whose MLP is as wide as "
            "the experts of a token together, and two copies of the token for each of these"
        )
    if any(layer.part == "encoder" for layer in unknown) and isinstance(family, TileFamily):
        block = replace(family.block, known=True, norm="rms").saved()
        estimates |= {layer.name: block for layer in unknown if layer.part == "encoder"}
        notes.append("activations of the tower: as of blocks with RMS norms in front of both parts")
    layers = [
        replace(layer, saved=estimates.get(layer.name)) if layer.saved is None else layer
        for layer in family.layers
    ]
    return layers, tuple(notes)


def _sizes(text: Any) -> Mapping[str, Any]:
    names = (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "hidden_act",
    )
    return {name: getattr(text, name) for name in names if hasattr(text, name)}
