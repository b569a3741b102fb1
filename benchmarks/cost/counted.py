"""FLOPs of the plain Hugging Face models, counted by torch on the meta device.

Meta tensors have shapes and no values, so that models of released sizes fit anywhere. Only steps
that read values are replaced, none of which is a matrix product: which tokens are image tokens, and
which rows a deepstack tap is added to.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForImageTextToText, Qwen2_5OmniThinkerForConditionalGeneration
from transformers.vision_utils import get_vision_window_index

from flowtrain.cost.flops import Grid
from flowtrain.models.family import Family
from flowtrain.models.qwen2_5_omni import Qwen25OmniThinker

META = torch.device("meta")


def plain_model(config: Any) -> Any:
    """The model of transformers with eager attention, without values."""
    with META:
        model: Any = AutoModelForImageTextToText.from_config(config, attn_implementation="eager")
    model.train()
    mask = torch.empty(1, 1, 1, dtype=torch.bool, device=META)
    # Some models have a second mask, for videos.
    masks = mask if config.model_type in ("internvl", "llava") else (mask, mask)
    model.model.get_placeholder_mask = lambda *_, **__: masks
    if hasattr(model.model.language_model, "_deepstack_process"):
        model.model.language_model._deepstack_process = _add_tap
    return model


def _add_tap(hidden: torch.Tensor, _: torch.Tensor, tap: torch.Tensor) -> torch.Tensor:
    rows = len(tap)
    return torch.cat([hidden[:, :rows] + tap, hidden[:, rows:]], dim=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """What torch counted for a document.

    Attributes:
        tokens: Tokens of the document.
        forward: FLOPs of the forward pass.
        backward: FLOPs of the backward pass.
        modules: Forward FLOPs of each module, by its path. In the backward pass the counter gives
            those of parallel modules, as mergers of deepstack taps, to others that are still open.
    """

    tokens: int
    forward: int
    backward: int
    modules: dict[str, int]


def counted_flops(
    family: Family, model: Any, grids: list[Grid], text_tokens: int, trained: Collection[str]
) -> Counted:
    """Count the FLOPs of one document on the plain model.

    Args:
        family: Family of the model.
        model: As `plain_model` returns it.
        grids: Grids of the images of the document.
        text_tokens: Tokens of the text.
        trained: Parts that train.
    """
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(family.part_of(name) in trained)
    with FlopCounterMode(display=False) as counter:
        out = _features(family, model, grids)
        tokens = sum(len(image.flatten(0, -2)) for image in out.pooler_output) + text_tokens
        logits = model(**_document(family.config, tokens), mm_encoder_outputs={"image": out}).logits
        return _counted(counter, model, logits)


def plain_thinker(config: Any) -> Any:
    """The thinker of Qwen2.5-Omni with eager attention, without values."""
    with META:
        model: Any = Qwen2_5OmniThinkerForConditionalGeneration._from_config(
            config, attn_implementation="eager"
        )
    mask = torch.empty(1, 1, 1, dtype=torch.bool, device=META)
    model.model.get_placeholder_mask = lambda *_, **__: (mask, mask, mask)
    return model.train()


def counted_thinker_flops(
    family: Qwen25OmniThinker,
    model: Any,
    grids: list[Grid],
    frames: int,
    text_tokens: int,
    trained: Collection[str],
) -> Counted:
    """Count the FLOPs of a document with images and a clip.

    Args:
        family: What describes the model.
        model: As `plain_thinker` returns it.
        grids: Grids of the images.
        frames: Frames of the clip.
        text_tokens: Tokens of the text.
        trained: Parts that train.
    """
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(family.part_of(name) in trained)
    audio = family.config.audio_config
    clip = family.audio_counts(frames)
    chunk = 2 * audio.n_window
    lengths = torch.tensor([chunk] * (frames // chunk) + [frames % chunk] * (frames % chunk > 0))
    edges = torch.nn.functional.pad(((lengths + 1) // 2).cumsum(0), (1, 0))
    given = {
        "padded_feature": torch.empty(
            len(lengths), audio.num_mel_bins, int(lengths.max()), device=META
        ),
        "chunk_lengths": lengths.to(META),
        "valid_indices": torch.empty(int(edges[-1]), dtype=torch.long, device=META),
        "pool_indices": torch.empty(round(clip.projected), dtype=torch.long, device=META),
        "cu_seqlens": edges,
    }
    with FlopCounterMode(display=False) as counter:
        heard = model.model.audio_tower(**given)
        model.model.get_audio_features = lambda *_, **__: heard
        images = _features(family, model, grids)
        rows = sum(len(image) for image in images.pooler_output)
        tokens = rows + round(clip.projected) + text_tokens
        logits = model(
            **_document(family.config, tokens),
            mm_encoder_outputs={"image": images},
            input_features=torch.empty(0, device=META),
        ).logits
        return _counted(counter, model, logits)


def counted_text_flops(model: Any, tokens: int) -> Counted:
    """Count the FLOPs of a text on the plain model, all of which trains."""
    with FlopCounterMode(display=False) as counter:
        return _counted(counter, model, model(**_document(model.config, tokens)).logits)


def _counted(counter: FlopCounterMode, model: Any, logits: torch.Tensor) -> Counted:
    """What was counted until the logits, and what the backward pass adds."""
    forward = counter.get_total_flops()
    # The counter names a module by the class of the outermost one that was called.
    outer = {type(module).__name__: path for path, module in reversed([*model.named_modules()])}
    modules = {}
    for name, by_operator in counter.get_flop_counts().items():
        first, _, rest = name.partition(".")
        path = ".".join(filter(None, (outer.get(first), rest)))
        modules[path] = sum(by_operator.values())
    logits.sum().backward()
    return Counted(
        tokens=logits.shape[1],
        forward=forward,
        backward=counter.get_total_flops() - forward,
        modules=modules,
    )


def _document(config: Any, tokens: int) -> dict[str, Any]:
    axes = (3, 1, tokens) if "qwen" in config.model_type else (1, tokens)
    return {
        "input_ids": torch.empty(1, tokens, dtype=torch.long, device=META),
        "position_ids": torch.empty(axes, dtype=torch.long, device=META),
        # Otherwise the model reads from the positions whether documents are packed.
        "attention_mask": torch.empty(1, 1, tokens, tokens, device=META),
        "use_cache": False,
    }


def _features(family: Family, model: Any, grids: list[Grid]) -> Any:
    """What `mm_encoder_outputs` takes, of a model whose pixels have no values."""
    config, vision = family.config, family.config.vision_config
    if "qwen" in config.model_type:
        sizes = torch.tensor(grids)
        patches = int(sizes.prod(1).sum())
        values = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        visual = model.model.visual
        given: dict[str, Any] = {
            "position_ids": torch.empty(patches, 2, dtype=torch.long, device=META)
        }
        if config.model_type.startswith("qwen2_5"):
            order, edges = get_vision_window_index(
                sizes, vision.spatial_merge_size, visual.window_size, vision.patch_size
            )
            given |= {"window_index": order.to(META), "cu_window_seqlens": edges}
        else:
            corners = (patches, 4)
            given |= {
                "interp_indices": torch.empty(corners, dtype=torch.long, device=META),
                "interp_weights": torch.empty(corners, device=META),
            }
        pixels = torch.empty(patches, values, device=META)
        out = visual(pixels, grid_thw=sizes, return_dict=True, **given)
        out.pooler_output = (out.pooler_output,)
        if hasattr(out, "deepstack_features"):
            out.deepstack_features = [(tap,) for tap in out.deepstack_features]
        return out
    side = family.config.vision_config.image_size
    side = side if isinstance(side, int) else side[0]
    tiles = sum(tiles for tiles, *_ in grids)
    given = {}
    if config.model_type == "llava_onevision":
        given["image_sizes"] = torch.tensor([size for _, *size in grids])
        given["batch_num_images"] = torch.tensor([len(grids)])
    return model.model.get_image_features(
        pixel_values=torch.empty(tiles, 3, side, side, device=META), return_dict=True, **given
    )
