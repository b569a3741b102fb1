"""The processor that belongs to a model, as `AutoProcessor` loads it.

Without torchvision, `AutoProcessor` refuses a processor that also has a video half. Then the same
class is made without that half.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer, ProcessorMixin
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING


def processor_of(folder: Path) -> Any:
    """The processor of a local Hugging Face folder, for text and images."""
    kind = PROCESSOR_MAPPING[type(AutoConfig.from_pretrained(folder))]
    found, _ = ProcessorMixin.get_processor_dict(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    parameters = inspect.signature(kind.__init__).parameters
    options = {name: value for name, value in found.items() if name in parameters}
    if "video_processor" in parameters:
        options["video_processor"] = None
        # The check of classes refuses None.
        kind = type(kind.__name__, (kind,), {"check_argument_for_proper_class": _unchecked})
    options |= {
        "image_processor": AutoImageProcessor.from_pretrained(folder),
        "tokenizer": tokenizer,
        "chat_template": found.get("chat_template") or tokenizer.chat_template,
    }
    return kind(**options)


def _unchecked(*_: Any) -> None:
    """Takes the place of `ProcessorMixin.check_argument_for_proper_class`."""


def sample_of(processor: Any, messages: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A conversation as its model takes it, with the answers as labels.

    Args:
        processor: The model's processor.
        messages: Turns whose content is a list of parts; a part of type image holds the image.

    Returns:
        Tensors for the model, and `labels`, not shifted, -100 where a token is no target. Targets
        are what the template marks, or else each answer with its end mark.
    """
    if re.search(r"\{%-?\s*generation", processor.chat_template):
        inputs = _encode(processor, messages, return_assistant_tokens_mask=True)
        mask = inputs.pop("assistant_masks").bool()
        images = inputs["input_ids"] == processor.image_token_id
        labels = inputs["input_ids"].masked_fill(~mask | images, -100)
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
