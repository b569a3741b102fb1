"""A small model of each family, and samples as its own processor makes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from plain_processor import processor_of
from transformers import AutoModelForImageTextToText

from flowtrain.cost.flops import Grid, Side
from flowtrain.models.family import Family
from flowtrain.models.packed_batch import PackedBatch, pack
from flowtrain.models.registry import family_for
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
