"""What holds for every family: the numbers of the plain model, and those of its own processor."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from cost.kept import kept_bytes
from PIL import Image
from plain_processor import processor_of
from support import one_thread
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForImageTextToText

from flowtrain.config.lora import Adapter, LoraConfig
from flowtrain.config.parallel import ModuleParallel, ParallelConfig
from flowtrain.cost.activations import layer_bytes, levels_of
from flowtrain.cost.flops import Grid, Side
from flowtrain.cost.layers import PARTS, Counts, layer_flops
from flowtrain.models import ModelError, short_documents
from flowtrain.models.describe import describe_family
from flowtrain.models.family import Family
from flowtrain.models.lora import with_lora
from flowtrain.models.packed_batch import PackedBatch, pack
from flowtrain.models.recompute import recompute_blocks
from flowtrain.models.registry import family_for
from flowtrain.models.send import send
from flowtrain.models.tiny import SMALLEST, TINY, write_tiny_model
from flowtrain.models.videos import FAMILIES_WITH_VIDEO, VideoHead

CPU = torch.device("cpu")


class Model:
    """A small model of a family, and samples as its own processor makes them."""

    def __init__(self, folder: Path, kind: str, side: Side) -> None:
        write_tiny_model(folder, SMALLEST, family=kind)
        self.family: Family = family_for(folder, projector_side=side)
        self.images = self.family.image_processor()
        has_videos = kind in FAMILIES_WITH_VIDEO
        self.videos = self.family.video_processor() if has_videos else None
        self.processor = processor_of(folder)

    def build(self, side: str) -> Any:
        return build_double(self.family, side)

    def plain(self, attention: str = "sdpa") -> Any:
        """The model of transformers, without anything of FlowTrain."""
        torch.manual_seed(1)
        model: Any = AutoModelForImageTextToText.from_config(
            self.family.config,
            dtype=torch.float32,
            attn_implementation=attention,
            experts_implementation="eager",  # The default has no float64.
        )
        for parameter in model.parameters():
            parameter.data = parameter.data.double()
        return model.train()

    def sample(
        self, text: str, *sizes: tuple[int, int], clips: Sequence[tuple[int, int, int]] = ()
    ) -> Sample:
        """A sample with images and videos of these sizes: (frames,) height and width.

        Videos have four frames a second; they are left out if the family has none.
        """
        draw = np.random.default_rng(len(text))
        images = [
            Image.fromarray(draw.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in sizes
        ]
        clips = clips if self.videos else ()
        videos = [draw.integers(0, 256, (*size, 3), dtype=np.uint8) for size in clips]
        parts = [{"type": "image"}] * len(images) + [{"type": "video"}] * len(videos)
        parts.append({"type": "text", "text": text})
        turns = [
            {"role": "user", "content": parts},
            {"role": "assistant", "content": [{"type": "text", "text": text[::-1]}]},
        ]
        prompt = self.processor.apply_chat_template(turns, tokenize=False)
        given: dict[str, Any] = {"images": [images]} if images else {}
        if videos:
            metadata = [
                {"total_num_frames": len(v), "fps": 4.0, "frames_indices": list(range(len(v)))}
                for v in videos
            ]
            given |= {"videos": [videos], "video_metadata": [metadata]}
        inputs = dict(self.processor(text=[prompt], return_tensors="pt", **given))
        return Sample(self, images, videos, inputs)


def build_double(family: Family, side: str) -> Any:
    return family.build(
        side,  # type: ignore[arg-type]
        weights=None,
        seed=1,
        dtype=torch.float64,
        device=CPU,
    )


class Sample:
    def __init__(
        self,
        model: Model,
        images: list[Image.Image],
        videos: list[np.ndarray],
        inputs: dict[str, Any],
    ) -> None:
        self.inputs = inputs
        self.ids: torch.Tensor = inputs["input_ids"][0]
        number = len(images)
        self.grids = [
            model.images.grid(image.height, image.width, num_images=number) for image in images
        ]
        self.pixels = [
            model.images.normalize(
                torch.from_numpy(model.images.resize(image, num_images=number)), torch.float32
            )
            for image in images
        ]
        self.num_tokens = [model.images.num_tokens(grid) for grid in self.grids]
        self.seconds = [0.0] * number
        for video in videos:
            assert model.videos is not None
            frames, height, width, _ = video.shape
            plan = model.videos.plan(
                VideoHead(num_frames=frames, fps=4.0, height=height, width=width)
            )
            values = model.videos.resize(iter(video[list(plan.frames)]), plan.grid)
            pixels = model.videos.normalize(torch.from_numpy(values), torch.float32)
            assert pixels.shape == model.videos.pixel_shape(plan.grid)
            self.grids.append(plan.grid)
            self.num_tokens.append(model.videos.num_tokens(plan.grid))
            self.seconds.append(plan.seconds)
            self.pixels.append(pixels)
        self.types = (self.ids == model.family.image_id).long()
        if model.family.video_id != model.family.image_id:
            self.types += 2 * (self.ids == model.family.video_id)
        self.labels = self.ids.masked_fill(self.types > 0, -100)

    def plain_loss(self, model: Any) -> torch.Tensor:
        inputs = {k: v.double() if v.is_floating_point() else v for k, v in self.inputs.items()}
        logits = model(**inputs, use_cache=False).logits[0]
        return torch.nn.functional.cross_entropy(
            logits[:-1], self.labels[1:], ignore_index=-100, reduction="sum"
        )


@pytest.fixture(
    scope="module", params=[(kind, side) for kind in TINY for side in ("encoder", "backbone")]
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("model"), *request.param)


def samples_of(model: Model) -> list[Sample]:
    return [
        model.sample("read the strip", (8, 40)),
        model.sample("text alone"),
        model.sample("two of them", (16, 24), (8, 8)),
        model.sample("a large one", (72, 40)),
        model.sample("a video behind an image", (8, 16), clips=[(9, 16, 24)]),
        model.sample("two videos", clips=[(5, 24, 16), (4, 8, 8)]),
    ]


def packed(family: Family, samples: list[Sample]) -> PackedBatch:
    lengths = [len(sample.ids) for sample in samples]
    types = torch.cat([sample.types for sample in samples])
    seconds = [second for sample in samples for second in sample.seconds]
    return pack(
        input_ids=torch.cat([sample.ids for sample in samples]),
        labels=torch.cat([sample.labels for sample in samples]),
        position_ids=family.position_ids(types, grids_of(samples), lengths, seconds),
        grids=grids_of(samples),
        doc_lengths=lengths,
        visual_ids=family.visual_ids,
        device=torch.device("cpu"),
    )


def grids_of(samples: list[Sample]) -> list[Grid]:
    return [grid for sample in samples for grid in sample.grids]


def pixels_of(samples: list[Sample]) -> torch.Tensor:
    return torch.cat([pixels for sample in samples for pixels in sample.pixels]).double()


def test_packed_documents_on_both_sides_equal_each_document_on_the_plain_model(
    model: Model,
) -> None:
    family, samples = model.family, samples_of(model)
    plain = model.plain()
    total = sum(sample.plain_loss(plain) for sample in samples)
    total.backward()  # type: ignore[union-attr]
    encoder, backbone = model.build("encoder"), model.build("backbone")
    rows = family.encode(encoder, pixels_of(samples), grids_of(samples))
    planned = sum(
        family.image_rows(grid, tokens)
        for sample in samples
        for grid, tokens in zip(sample.grids, sample.num_tokens, strict=True)
    )
    assert rows.shape == (planned, family.row_width)
    leaf = rows.detach().requires_grad_()
    out = family.loss(backbone, packed(family, samples), leaf)
    out.loss_sum.backward()
    rows.backward(leaf.grad)
    # Norms and rotary positions round to float32 on the way.
    torch.testing.assert_close(out.loss_sum, total, rtol=1e-7, atol=0)
    ours = {**dict(encoder.named_parameters()), **dict(backbone.named_parameters())}
    theirs = dict(plain.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, parameter in theirs.items():
        if parameter.grad is None:
            # Otherwise weight decay would change what a plain loop leaves alone.
            assert not ours[name].requires_grad, name
            continue
        # The bias of keys shifts all scores of a query alike: its gradient is rounding alone.
        torch.testing.assert_close(
            ours[name].grad, parameter.grad, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_adapters_have_the_gradients_of_those_of_peft_in_the_plain_model(model: Model) -> None:
    family, samples, ranks = copy(model.family), samples_of(model), {"backbone": 4, "encoder": 2}
    plain = model.plain()
    adapt(plain, family, ranks)
    let_train(plain, family, set(PARTS), ranks)
    theirs = dict(plain.named_parameters())
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in theirs.items():
            if "lora_" in name:  # B is zero at first, and then A has no gradient.
                parameter.copy_(torch.randn(parameter.shape) / 10)
    total = sum(sample.plain_loss(plain) for sample in samples)
    total.backward()  # type: ignore[union-attr]
    family.lora = LoraConfig(**{part: Adapter(rank=rank) for part, rank in ranks.items()})
    encoder, backbone = (build_double(family, side) for side in ("encoder", "backbone"))
    ours = {**dict(encoder.named_parameters()), **dict(backbone.named_parameters())}
    with torch.no_grad():
        for name, parameter in ours.items():
            if "lora_" in name:
                parameter.copy_(theirs[name])
    rows = family.encode(encoder, pixels_of(samples), grids_of(samples))
    leaf = rows.detach().requires_grad_()
    out = family.loss(backbone, packed(family, samples), leaf)
    out.loss_sum.backward()
    rows.backward(leaf.grad)
    torch.testing.assert_close(out.loss_sum, total, rtol=1e-7, atol=0)
    adapted = {name for name in theirs if "lora_" in name and theirs[name].grad is not None}
    assert {family.part_of(name) for name in adapted} == set(ranks)
    assert adapted == {name for name in ours if "lora_" in name}
    for name, parameter in ours.items():
        # Layers of the tower that nothing reads have adapters in the plain model alone.
        wanted = theirs[name].grad if name in theirs else None
        assert parameter.requires_grad == (wanted is not None), name
        if wanted is not None:
            torch.testing.assert_close(
                parameter.grad,
                wanted,
                rtol=1e-5,
                atol=1e-6,
                msg=lambda m, n=name: f"{n}: {m}",
            )


def test_a_leak_between_documents_changes_the_loss(model: Model) -> None:
    family, samples = model.family, samples_of(model)
    full = model.build("full")
    batch = packed(family, samples)
    one = replace(batch, doc_lengths=[sum(batch.doc_lengths)])
    with torch.no_grad():
        rows = family.encode(full, pixels_of(samples), grids_of(samples))
        apart, together = (float(family.loss(full, b, rows).loss_sum) for b in (batch, one))
    assert abs(together / apart - 1) > 1e-4


def test_the_host_does_not_wait_for_a_device_within_the_passes_of_a_row(model: Model) -> None:
    family, samples = model.family, samples_of(model)
    backbone = model.build("backbone")
    with torch.no_grad():
        rows = family.encode(model.build("encoder"), pixels_of(samples), grids_of(samples))
    waits: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            # A shape or a value that depends on the content of a tensor.
            if operator._schema.name in ("aten::nonzero", "aten::_local_scalar_dense"):
                waits.append(operator._schema.name)
            return operator(*args, **(kwargs or {}))

    batch = packed(family, samples)
    with Watch():
        family.loss(backbone, batch, rows.requires_grad_()).loss_sum.backward()
    # Experts take the tokens that are chosen for them, whose number the device knows.
    assert waits == [] or hasattr(family.config.get_text_config(), "num_experts")


def test_the_host_does_not_wait_for_a_device_within_the_passes_of_images(model: Model) -> None:
    family, samples = model.family, samples_of(model)
    meta = torch.device("meta")
    encoder = family.build("encoder", weights=None, seed=1, dtype=torch.bfloat16, device=meta)
    waits: list[tuple[str, str]] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = function(*args, **(kwargs or {}))
            # A copy from the host, but for those of `send`.
            if isinstance(out, torch.Tensor) and out.device == meta:
                from_host = args and isinstance(args[0], torch.Tensor) and args[0].device == CPU
                caller = sys._getframe(1).f_globals["__name__"]
                if (from_host or function is torch.tensor) and caller != send.__module__:
                    waits.append((function.__name__, caller))
            return out

    pixels = pixels_of(samples).to(meta)
    # What depends on the content of a tensor is refused on this device.
    with Watch():
        family.encode(encoder, pixels, grids_of(samples)).sum().backward()
    assert waits == []


def test_positions_of_a_row_of_another_shape_are_refused(model: Model) -> None:
    batch = packed(model.family, [model.sample("text alone")])
    wrong = replace(batch, position_ids=batch.position_ids[:-1])
    with pytest.raises(ModelError, match="otherwise documents would see each other"):
        model.family.loss(model.build("backbone"), wrong, None)


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


def adapt(model: Any, family: Family, ranks: dict[str, int]) -> None:
    """Add adapters of PEFT to all linear layers of some parts."""
    peft = pytest.importorskip("peft")
    head, names = model.get_output_embeddings(), {}
    for name, module in model.named_modules():
        part = family.part_of(f"{name}.weight") if isinstance(module, torch.nn.Linear) else None
        if part in ranks and module is not head:
            names[name] = ranks[part]
    lora = peft.LoraConfig(target_modules=list(names), rank_pattern=names)
    peft.inject_adapter_in_model(lora, model)


def let_train(model: Any, family: Family, trained: set[str], ranks: dict[str, int]) -> None:
    for name, parameter in model.named_parameters():
        part = family.part_of(name)
        parameter.requires_grad_(part in trained and (part not in ranks or "lora_" in name))


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


def test_every_parameter_belongs_to_the_part_that_holds_it(model: Model) -> None:
    sides = {side: dict(model.build(side).named_parameters()) for side in ("encoder", "backbone")}
    parts = set()
    for side, parameters in sides.items():
        for name in parameters:
            assert model.family.side_of(name) == side, name
            parts.add(model.family.part_of(name))
    assert parts == {"encoder", "projector", "backbone"}


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
