"""The processor that belongs to a model, as `AutoProcessor` loads it.

Without torchvision, `AutoProcessor` refuses a processor that also has a video half. Then the same
class is made, and torch computes the operators of its video half. Videos are decoded by PyAV.
"""

from __future__ import annotations

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer, ProcessorMixin
from transformers.image_processing_backends import TorchvisionBackend
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING
from transformers.utils import is_torchvision_available
from transformers.video_processing_utils import BaseVideoProcessor
from transformers.video_utils import load_video

VIDEO_PROCESSORS = {
    "qwen3_vl": "qwen3_vl.video_processing_qwen3_vl:Qwen3VLVideoProcessor",
    "qwen3_vl_moe": "qwen3_vl.video_processing_qwen3_vl:Qwen3VLVideoProcessor",
    "qwen2_5_vl": "qwen2_vl.video_processing_qwen2_vl:Qwen2VLVideoProcessor",
    "internvl": "internvl.video_processing_internvl:InternVLVideoProcessor",
    "llava_onevision": "llava_onevision.video_processing_llava_onevision:"
    "LlavaOnevisionVideoProcessor",
}
"""Class of the video processor of each `model_type`, in `transformers.models`."""


def processor_of(folder: Path) -> Any:
    """The processor of a local Hugging Face folder, for text, images and videos."""
    config = AutoConfig.from_pretrained(folder)
    kind = PROCESSOR_MAPPING[type(config)]
    found, _ = ProcessorMixin.get_processor_dict(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    parameters = inspect.signature(kind.__init__).parameters
    options = {name: value for name, value in found.items() if name in parameters}
    if "video_processor" in parameters:
        options["video_processor"] = video_processor_of(folder, config.model_type)
        # The check of classes refuses a class of our own.
        kind = type(kind.__name__, (kind,), {"check_argument_for_proper_class": _unchecked})
    options |= {
        "image_processor": AutoImageProcessor.from_pretrained(folder),
        "tokenizer": tokenizer,
        "chat_template": found.get("chat_template") or tokenizer.chat_template,
    }
    return kind(**options)


class _TorchOperators(TorchvisionBackend):
    """Operators of torchvision that video processors of transformers call, computed by torch."""

    def resize(self, image: Any, size: Any, resample: Any = None, **_: Any) -> Any:
        assert resample == 3, "bicubic"
        flat, target = image.flatten(0, -4), (size.height, size.width)
        scaled = F.interpolate(flat, target, mode="bicubic", antialias=True)
        return scaled.unflatten(0, image.shape[:-3])

    def normalize(self, image: Any, mean: Any, std: Any, **_: Any) -> Any:
        mean, std = (torch.as_tensor(value)[:, None, None] for value in (mean, std))
        return (image - mean) / std

    def convert_to_rgb(self, image: Any, *_: Any, **__: Any) -> Any:
        return image


def video_processor_of(folder: Path, model_type: str) -> Any:
    """The video processor of a local Hugging Face folder, which decodes by PyAV, or None."""
    if model_type not in VIDEO_PROCESSORS:
        return None
    module, name = VIDEO_PROCESSORS[model_type].split(":")
    body = {"fetch_videos": _fetch_videos}
    bases: tuple[Any, ...] = ()
    names = []
    if not is_torchvision_available():
        body["convert_to_rgb"] = _TorchOperators.convert_to_rgb
        bases = (_TorchOperators,)
        # Some modules import it, for annotations alone.
        names = ["torchvision", "torchvision.transforms", "torchvision.transforms.v2"]
        names.append("torchvision.transforms.v2.functional")
        sys.modules.update({name: ModuleType(name) for name in names})
    kind: Any = getattr(import_module(f"transformers.models.{module}"), name)
    for imported in names:
        del sys.modules[imported]
    return type(name, (kind, *bases), body).from_pretrained(folder)


def _fetch_videos(self: BaseVideoProcessor, videos: Any, sample_indices_fn: Any = None) -> Any:
    """Takes the place of `BaseVideoProcessor.fetch_videos`, which needs torchcodec."""
    if isinstance(videos, list):
        return list(zip(*(_fetch_videos(self, v, sample_indices_fn) for v in videos), strict=True))
    return load_video(videos, backend="pyav", sample_indices_fn=sample_indices_fn)


def _unchecked(*_: Any) -> None:
    """Takes the place of `ProcessorMixin.check_argument_for_proper_class`."""


def sample_of(processor: Any, messages: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A conversation as its model takes it, with the answers as labels.

    Args:
        processor: The model's processor.
        messages: Turns whose content is a list of parts; a part of type image holds the image, one
            of type video the path.

    Returns:
        Tensors for the model, and `labels`, not shifted, -100 where a token is no target. Targets
        are what the template marks, or else each answer with its end mark.
    """
    if re.search(r"\{%-?\s*generation", processor.chat_template):
        inputs = _encode(processor, messages, return_assistant_tokens_mask=True)
        mask = inputs.pop("assistant_masks").bool()
        visual = torch.zeros_like(mask)
        for name in ("image_token_id", "video_token_id"):
            visual |= inputs["input_ids"] == getattr(processor, name, -1)
        labels = inputs["input_ids"].masked_fill(~mask | visual, -100)
        return {**inputs, "labels": labels}
    inputs = _encode(processor, messages)
    labels = torch.full_like(inputs["input_ids"], -100)
    for turn, message in enumerate(messages):
        if message["role"] == "assistant":
            prompt = _encode(processor, messages[:turn], add_generation_prompt=True)
            start = prompt["input_ids"].shape[1]
            end = _encode(processor, messages[: turn + 1])["input_ids"].shape[1]
            ids = inputs["input_ids"][0, start:end]
            last = int((ids == processor.tokenizer.eos_token_id).nonzero()[-1])
            labels[0, start : start + last + 1] = ids[: last + 1]
    return {**inputs, "labels": labels}


def _encode(
    processor: Any, messages: list[dict[str, Any]], **options: Any
) -> dict[str, torch.Tensor]:
    return dict(
        processor.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_tensors="pt", **options
        )
    )
