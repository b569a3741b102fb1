"""A small model, a cluster and work for it, for tests of the planner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy

from flowtrain.cost import Counts, Layer, Product, Saved
from flowtrain.cost.timing import DataSheetTiming
from flowtrain.cost.topology import Link, Topology
from flowtrain.plan.describe import Encoder, FarInput, InputShape, ModelDescription
from flowtrain.plan.space import GpuPool
from flowtrain.plan.work import Work
from flowtrain.workloads import Workload

_WIDTH, _VISION, _VOCABULARY = 256, 128, 5000


def small_model(*, blocks: int = 6, towers: int = 3, **changes: Any) -> ModelDescription:
    """Patches, a tower with a tap, a projector, an embedding, a decoder and a head."""
    w, v = _WIDTH, _VISION
    tower = Layer(
        name="tower",
        part="encoder",
        products=(
            Product("vision_tokens", 24.0 * v * v),
            Product("vision_pairs", 4.0 * v, has_weight=False),
        ),
        saved=(Saved("vision_tokens", 19 * v), Saved("vision_tokens", v, of_attention=True)),
        takes=("vision_tokens", v),
    )
    decoder = Layer(
        name="decoder",
        part="backbone",
        products=(
            Product("tokens", 24.0 * w * w),
            Product("pairs", 4.0 * w, has_weight=False),
        ),
        saved=(Saved("tokens", 19 * w), Saved("tokens", w, of_attention=True)),
        takes=("tokens", w),
    )
    patches = Layer(
        name="patches",
        part="encoder",
        products=(Product("patches", 1000.0 * v, is_first=True),),
        saved=(Saved("patches", 500, "weight"),),
    )
    projector = Layer(
        name="projector",
        part="projector",
        products=(Product("projected", 8.0 * v * w, is_first=True),),
        saved=(Saved("projected", 4 * v),),
    )
    head = Layer(
        name="head",
        part="backbone",
        products=(Product("targets", 2.0 * w * _VOCABULARY),),
        saved=(
            Saved("targets", w, "weight"),
            Saved("targets", _VOCABULARY, itemsize=4, in_chunks=True),
        ),
    )
    embedding = Layer(name="embedding", part="backbone")
    layers = (patches, *[tower] * towers, projector, embedding, *[decoder] * blocks, head)
    sizes = {"tower": 12 * v * v, "decoder": 12 * w * w, "patches": 500 * v, "projector": 4 * v * w}
    parameters = tuple(sizes.get(layer.name, w * _VOCABULARY) for layer in layers)
    given: dict[str, Any] = {
        "name": "small",
        "layers": layers,
        "parameters": parameters,
        "experts": (0,) * len(layers),
        "unused": (0,) * len(layers),
        "vocabulary": _VOCABULARY,
        "width": w,
        "heads": 8,
        "kv_heads": 4,
        "kv_width": w // 2,
        "num_experts": 0,
        "chosen_experts": 0,
        "encoders": (
            Encoder(
                name="encoder",
                modality="vision",
                first=0,
                end=towers + 2,
                width=v,
                heads=4,
                row_width=w,
                projector_side="encoder",
                shape=InputShape(
                    per_token=Counts(patches=4, vision_tokens=4, projected=1),
                    per_pair=Counts(vision_pairs=16),
                ),
            ),
        ),
        "far_inputs": (FarInput(source=towers + 1, target=towers + 3, unit="projected", values=w),),
    }
    return ModelDescription(**(given | changes))


def two_encoders(*, blocks: int = 6, **changes: Any) -> ModelDescription:
    """The small model with a narrower tower for audio, of two tokens each, beside its own."""
    model = small_model(blocks=blocks)
    (images,) = model.encoders
    v, w = _VISION // 2, _WIDTH
    listens = Layer(
        name="listens",
        part="encoder",
        products=(
            Product("vision_tokens", 24.0 * v * v),
            Product("window_pairs", 4.0 * v, has_weight=False),
        ),
        saved=(Saved("vision_tokens", 19 * v), Saved("vision_tokens", v, of_attention=True)),
        takes=("vision_tokens", v),
    )
    projector = Layer(
        name="hears",
        part="projector",
        products=(Product("projected", 2.0 * v * w),),
        saved=(Saved("projected", 2 * v),),
    )
    end = images.end + 3
    audio = Encoder(
        name="audio",
        modality="audio",
        first=images.end,
        end=end,
        width=v,
        heads=2,
        row_width=w,
        projector_side="encoder",
        shape=InputShape(per_token=Counts(vision_tokens=2, window_pairs=100, projected=1)),
    )

    def inserted(values: tuple[Any, ...], *new: Any) -> tuple[Any, ...]:
        return (*values[: images.end], *new, *values[images.end :])

    rows = FarInput(source=images.end - 1, target=end, unit="projected", values=w)
    given: dict[str, Any] = {
        "layers": inserted(model.layers, listens, listens, projector),
        "parameters": inserted(model.parameters, 12 * v * v, 12 * v * v, v * w),
        "experts": inserted(model.experts, 0, 0, 0),
        "unused": inserted(model.unused, 0, 0, 0),
        "encoders": (replace(images, name="vision"), audio),
        "far_inputs": (rows,),
    }
    return replace(model, **(given | changes))


def small_pool(gpus: int, *, memory_bytes: int = 400_000_000, **changes: Any) -> GpuPool:
    """GPUs in nodes of four."""
    given: dict[str, Any] = {
        "gpu_type": "T",
        "gpus": gpus,
        "topology": Topology(
            devices_per_node=4,
            inside=Link(latency_s=1e-6, bytes_per_s=1e10),
            between=Link(latency_s=5e-6, bytes_per_s=2e9),
        ),
        "memory_bytes": memory_bytes,
        "memory_bytes_per_s": 1e11,
        "flops_per_s": 1e13,
        "timing": DataSheetTiming(flops_per_s=1e13, memory_bytes_per_s=1e11, extrapolates=True),
        "timing_source": "test",
    }
    return GpuPool(**(given | changes))


def small_work(*, batch: int = 32, seed: int = 0, with_audio: bool = False, **changes: Any) -> Work:
    """Samples with one image each, but for some; and with a clip of audio."""
    random = numpy.random.default_rng(seed)
    visual = random.integers(0, 600, 64) * (random.random(64) < 0.8)
    tokens = visual + random.integers(20, 300, 64)
    audio = random.integers(40, 200, 64) if with_audio else None
    tokens = tokens if audio is None else tokens + audio
    workload = Workload(
        name="small",
        tokens=tokens,
        visual_tokens=visual,
        cost=tokens.astype(float),
        encoder_cost=visual.astype(float),
        audio_tokens=audio,
    )
    return Work(**({"workload": workload, "batch": batch, "item_tokens": 600} | changes))
