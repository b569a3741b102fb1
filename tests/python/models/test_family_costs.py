"""Costs of every family, as the cost model counts them: FLOPs, activations, adapters, sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from cost.kept import kept_bytes
from family_models import (
    CPU,
    Model,
    Sample,
    adapt,
    let_train,
    model,
    packed,
    pixels_of,
    samples_of,
)
from support import one_thread
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from flowtrain.config.parallel import ModuleParallel, ParallelConfig
from flowtrain.cost.activations import layer_bytes, levels_of
from flowtrain.cost.flops import Side
from flowtrain.cost.layers import PARTS, Counts, layer_flops
from flowtrain.models import short_documents
from flowtrain.models.describe import describe_family
from flowtrain.models.family import Family
from flowtrain.models.lora import with_lora
from flowtrain.models.recompute import recompute_blocks

__all__ = ["model"]


def test_analytic_flops_equal_counted_flops(model: Model) -> None:
    family = model.family
    sample = model.sample("x" * 30, (72, 40), clips=[(6, 32, 16)])
    encoder, backbone = model.build("encoder"), model.build("backbone")
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as encoding:
        rows = family.encode(encoder, pixels_of([sample]), sample.grids).detach()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
        out = family.loss(backbone, packed(family, [sample]), rows)
    tokens = len(sample.ids)
    flops = family.sample_flops(tokens, sample.grids, num_targets=out.num_targets)
    side = family.projector_side
    assert encoding.get_total_flops() == flops.on("encoder", side)
    # The MFU of the encoder counts images one by one.
    assert sum(map(family.image_flops, sample.grids)) == flops.on("encoder", side)
    text = family.config.text_config
    # The counter counts all products of causal attention, which needs half of them.
    half = text.num_hidden_layers * 2 * text.hidden_size * tokens**2
    behind = flops.on("backbone", side)
    assert counted.get_total_flops() - half == behind


def test_flops_of_both_passes_are_those_of_the_plain_model(model: Model) -> None:
    family = model.family
    sample = model.sample("x" * 30, (72, 40), clips=[(6, 32, 16)])
    plain = model.plain(attention="eager")
    tokens = len(sample.ids)
    counts = family.counts(tokens, sample.grids, num_targets=tokens, causal_share=1.0)
    for trained in (set(PARTS), {"backbone"}, {"projector"}, {"encoder"}):
        for name, parameter in plain.named_parameters():
            parameter.requires_grad_(family.part_of(name) in trained)
        with FlopCounterMode(display=False) as counter:
            loss = sample.plain_loss(plain)
            forward = counter.get_total_flops()
            loss.backward()
        ours = layer_flops(family.layers, counts, trained, with_left_out=True)
        found = [sum(f.forward for f in ours), sum(f.backward for f in ours)]
        assert found == [forward, counter.get_total_flops() - forward], trained


KEPT = (
    (ModuleParallel(), None),
    (ModuleParallel(recompute="full"), None),
    (ModuleParallel(recompute="selective"), 10_000),
    (ModuleParallel(recompute="full", recompute_layers=2), 10_000),
)
"""Levels of recomputation of both sides, and limits of the logits."""


def counts_of(family: Family, samples: Sequence[Sample]) -> Counts:
    """How much of each unit a row of samples has."""
    counts = [
        family.counts(len(s.ids), s.grids, num_targets=int((s.labels[1:] != -100).sum()))
        for s in samples
    ]
    return Counts(*map(sum, zip(*counts, strict=True)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_take_the_bytes_that_autograd_keeps(
    model: Model, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, samples = model.family, samples_of(model)
    batch, pixels = packed(family, samples), pixels_of(samples).to(dtype)
    row = counts_of(family, samples)
    # In bfloat16 a call of torch's kernel for each length, in float32 one call of ours.
    joined = dtype == torch.bfloat16
    monkeypatch.setattr(short_documents, "_LONGEST", 1000)
    options: dict[str, Any] = {"weights": None, "seed": 1, "dtype": dtype, "device": CPU}
    for level, limit in KEPT:
        sides = encoder, backbone = [family.build(s, **options) for s in get_args(Side)]
        for side in sides:
            recompute_blocks(family, side, level)
        backbone.logit_bytes = limit
        with torch.no_grad():  # The family keeps tensors of the sizes of images, outside a step.
            encoder(pixels, batch.grids)

        def forward() -> Any:
            # What is kept has to be made here.
            given = replace(
                batch, **{n: getattr(batch, n) * 1 for n in ("input_ids", "predicting", "visual")}
            )
            return backbone(given, encoder(pixels * 1, batch.grids)).loss_sum  # noqa: B023

        for trained in (set(PARTS), {"encoder"}, {"projector"}):
            for side in sides:
                for name, parameter in side.named_parameters():
                    parameter.requires_grad_(family.part_of(name) in trained)
            with one_thread():
                found = kept_bytes(forward)
            ours = layer_bytes(
                family.layers,
                row,
                trained,
                itemsize=dtype.itemsize,
                levels=levels_of(family.layers, ParallelConfig(encoder=level, backbone=level)),
                joined=joined,
                logit_bytes=limit,
            )
            # Cross entropy keeps one number, and the tower has a few that no image adds to.
            assert 0 <= found - sum(layer.kept for layer in ours) < 200, (trained, level, limit)


@pytest.mark.parametrize(
    "trained", [{"projector", "backbone"}, set(PARTS)], ids=["frozen encoder", "all parts"]
)
def test_adapters_cost_what_those_of_peft_do(model: Model, trained: set[str]) -> None:
    family, ranks = model.family, {"backbone": 4, "encoder": 2}
    described = with_lora(describe_family(family, name="small"), family, ranks)
    sample = model.sample("x" * 30, (72, 40))
    plain = model.plain(attention="eager").float()
    adapt(plain, family, ranks)
    let_train(plain, family, trained, ranks)
    size = sum(p.numel() for p in plain.parameters() if p.requires_grad)
    assert described.trained_parameters(trained) == size
    tokens = len(sample.ids)
    counts = family.counts(tokens, sample.grids, num_targets=tokens, causal_share=1.0)
    with FlopCounterMode(display=False) as counter:
        loss = sample.plain_loss(plain)
        forward = counter.get_total_flops()
        loss.backward()
    ours = layer_flops(described.layers, counts, trained)
    whole = layer_flops(family.layers, counts, trained, with_left_out=True)
    computed = {each.name for each in ours}
    left_out = sum(each.forward for each in whole if each.name not in computed)
    assert sum(each.forward for each in ours) + left_out == forward
    found, counted = sum(each.backward for each in ours), counter.get_total_flops() - forward
    if "encoder" in trained:
        # Nothing needs the gradient of the input of the tower's first block.
        assert counted < found < 1.02 * counted
    else:
        assert found == counted


def test_adapters_keep_what_those_of_peft_do(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    family, samples, ranks = model.family, samples_of(model), {"backbone": 4}
    full = family.build("full", weights=None, seed=1, dtype=torch.float32, device=CPU)
    described = with_lora(describe_family(family, name="small"), family, ranks)
    batch, pixels = packed(family, samples), pixels_of(samples).float()
    row = counts_of(family, samples)
    monkeypatch.setattr(short_documents, "_LONGEST", 1000)
    adapt(full, family, ranks)
    for trained in ({"backbone"}, {"projector", "backbone"}):
        let_train(full, family, trained, ranks)
        with one_thread():
            kept = kept_bytes(
                lambda: (
                    family.loss(full, batch, family.encode(full, pixels * 1, batch.grids)).loss_sum
                )
            )
        ours = layer_bytes(described.layers, row, trained, itemsize=4)
        # Frozen norms and the frozen embedding keep a little less.
        assert kept < sum(each.kept for each in ours) < 1.05 * kept


def test_blocks_are_the_layers_of_tower_and_decoder(model: Model) -> None:
    family = model.family
    encoder, backbone = model.build("encoder"), model.build("backbone")
    tower, decoder = family.blocks(encoder), family.blocks(backbone)
    assert decoder == list(backbone.model.language_model.layers)
    lists = [m for m in encoder.modules() if isinstance(m, torch.nn.ModuleList)]
    # Mergers of deepstack taps are another list; layers whose output nothing reads come last.
    [layers] = [list(m) for m in lists if m[0] is tower[0]]
    assert tower == layers[: len(tower)]
    used = [any(p.requires_grad for p in layer.parameters()) for layer in layers]
    assert used == [True] * len(tower) + [False] * (len(layers) - len(tower))


def test_trainable_sizes_are_those_of_what_the_loss_depends_on(model: Model) -> None:
    full = model.build("full")
    trainable = {name: p.numel() for name, p in full.named_parameters() if p.requires_grad}
    assert model.family.trainable_sizes() == trainable
    assert sum(model.family.parameter_sizes().values()) == sum(p.numel() for p in full.parameters())
