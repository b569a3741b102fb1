"""FLOPs and memory of both towers of Qwen2.5-Omni, against the plain model of transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cost.kept import kept_bytes
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen2_5OmniConfig, Qwen2_5OmniThinkerForConditionalGeneration

from flowtrain.cost.activations import layer_bytes
from flowtrain.cost.layers import PARTS, Counts, layer_flops
from flowtrain.models.describe import describe
from flowtrain.models.qwen2_5_omni import TOWER, Qwen25OmniThinker
from flowtrain.models.rms_norm import use_own_norms
from flowtrain.models.swiglu import use_own_mlps
from tests.omni import thinker_config

GRID = (1, 12, 20)
CHOICES = (set(PARTS), {"backbone"}, {"projector"}, {"encoder"})


@pytest.fixture
def family(tmp_path: Path) -> Qwen25OmniThinker:
    thinker_config().save_pretrained(tmp_path)
    return Qwen25OmniThinker(tmp_path, projector_side="encoder")


def plain(family: Qwen25OmniThinker, attention: str) -> Any:
    torch.manual_seed(0)
    model: Any = Qwen2_5OmniThinkerForConditionalGeneration._from_config(
        family.config, attn_implementation=attention
    )
    return model.train()


@pytest.mark.parametrize("frames", [20, 93, 100])
def test_flops_of_both_passes_are_those_of_the_plain_model(
    family: Qwen25OmniThinker, frames: int
) -> None:
    model, config = plain(family, "eager"), family.config
    image = family.counts(0, [GRID], num_targets=0)
    clip = family.audio_counts(frames)
    rows = [config.image_token_id] * round(image.projected)
    heard = [config.audio_token_id] * round(clip.projected)
    ids = torch.tensor([[*rows, *heard, *range(30)]])
    tokens = ids.shape[1]
    patches, values = GRID[0] * GRID[1] * GRID[2], 3 * 2 * 4 * 4
    text = Counts(tokens=tokens, pairs=tokens**2, targets=tokens)
    parts = [layer for layer in family.layers if layer.part != "backbone"]
    units = [
        ([layer for layer in parts if not layer.name.startswith(TOWER)], image),
        ([layer for layer in parts if layer.name.startswith(TOWER)], clip),
        ([layer for layer in family.layers if layer.part == "backbone"], text),
    ]
    for trained in CHOICES:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(family.part_of(name) in trained)
        with FlopCounterMode(display=False) as counter:
            logits = model(
                input_ids=ids,
                position_ids=torch.arange(tokens).expand(3, 1, tokens),
                pixel_values=torch.randn(patches, values),
                image_grid_thw=torch.tensor([GRID]),
                input_features=torch.randn(1, config.audio_config.num_mel_bins, frames),
                feature_attention_mask=torch.ones(1, frames, dtype=torch.long),
                use_cache=False,
            ).logits
            forward = counter.get_total_flops()
            logits.sum().backward()
        flops = [f for layers, counts in units for f in layer_flops(layers, counts, trained)]
        found = [sum(f.forward for f in flops), sum(f.backward for f in flops)]
        assert found == [forward, counter.get_total_flops() - forward], trained


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_of_the_audio_tower_take_the_bytes_that_autograd_keeps(
    family: Qwen25OmniThinker, dtype: torch.dtype
) -> None:
    model = plain(family, "sdpa").to(dtype)
    use_own_norms(model)
    use_own_mlps(model)
    tower, layers = model.model.audio_tower, family.layers
    layers = [layer for layer in layers if layer.name.startswith(TOWER)]
    for frames in (20, 93):
        spectrogram, lengths = torch.randn(8, frames).to(dtype), torch.tensor([frames])
        for trained in ({"encoder", "projector"}, {"encoder"}, {"projector"}):
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(family.part_of(name) in trained)
            ours = layer_bytes(
                layers,
                family.audio_counts(frames),
                trained,
                itemsize=dtype.itemsize,
            )
            kept = kept_bytes(lambda: tower(spectrogram * 1, feature_lens=lengths))  # noqa: B023
            assert kept == sum(layer.kept for layer in ours), (frames, trained)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_of_the_vision_tower_take_the_bytes_that_autograd_keeps(
    family: Qwen25OmniThinker, dtype: torch.dtype
) -> None:
    model = plain(family, "sdpa").to(dtype)
    use_own_norms(model)
    use_own_mlps(model)
    visual = model.model.visual
    layers = [layer for layer in family.layers if layer.part != "backbone"]
    ours = layer_bytes(
        [layer for layer in layers if not layer.name.startswith(TOWER)],
        family.counts(0, [GRID], num_targets=0),
        PARTS,
        itemsize=dtype.itemsize,
        joined=True,  # By transformers, which calls attention frame by frame.
    )
    pixels = torch.randn(GRID[0] * GRID[1] * GRID[2], 3 * 2 * 4 * 4).to(dtype)
    kept = kept_bytes(lambda: visual(pixels * 1, grid_thw=torch.tensor([GRID])).pooler_output)
    assert abs(kept - sum(layer.kept for layer in ours)) < 200


def test_a_description_has_both_encoders_and_all_parameters(
    family: Qwen25OmniThinker, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    Qwen2_5OmniConfig(thinker_config=family.config.to_dict()).save_pretrained(whole)
    thinker = describe(tmp_path, name="omni")
    # Of the whole model the thinker is planned.
    assert describe(whole, name="omni") == replace(thinker, untrained="qwen2_5_omni")
    sizes = family.parameter_sizes()
    assert sum(thinker.parameters) == sum(sizes.values())
    assert sum(thinker.unused) == sizes[f"{TOWER}.audio_bos_eos_token.weight"]
    vision, audio = thinker.encoders
    assert (vision.name, vision.heads, audio.name, audio.heads) == ("vision", 2, "audio", 2)
    names = [layer.name for layer in thinker.layers]
    assert names[audio.first] == f"{TOWER}.conv1" and names[audio.end - 1] == f"{TOWER}.proj"
    own = [
        size for number, size in enumerate(thinker.parameters) if audio.first <= number < audio.end
    ]
    assert sum(own) == sum(size for name, size in sizes.items() if name.startswith(TOWER))
    (rows,) = thinker.far_inputs
    assert names[rows.source] == "model.visual.merger"
    assert names[rows.target] == "model.language_model.embed_tokens"
    chunks = family.audio_counts(100)
    assert audio.shape.counts(chunks.projected, 0) == pytest.approx(chunks)
