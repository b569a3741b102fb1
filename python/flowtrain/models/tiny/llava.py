"""Small LLaVA 1.5 and LLaVA-OneVision: tiles of 16 pixels, each of 16 tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowtrain.models.tiny.decoder import text_config, write_config, write_json
from flowtrain.models.tiny.sizes import TinyModel
from flowtrain.models.tiny.tokenizer import write_tokenizer

_SIDE, _PATCH = 16, 4
_PATCHES = (_SIDE // _PATCH) ** 2

_LLAVA_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] != 'system' %}{{ message['role'].upper() + ': ' }}{% endif %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>\\n' }}{% endfor %}"
    "{% if message['role'] != 'assistant' %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ part['text'] + ' ' }}{% endfor %}"
    "{% else %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% generation %}{{ part['text'] + '</s>' }}{% endgeneration %}{% endfor %}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT: ' }}{% endif %}"
)
_ONEVISION_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + ' ' }}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>\\n' }}{% endfor %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'video') %}"
    "{{ '<video>\\n' }}{% endfor %}"
    "{% if message['role'] != 'assistant' %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ '\\n' + part['text'] }}{% endfor %}"
    "{% else %}"
    "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% generation %}{{ '\\n' + part['text'] }}{% endgeneration %}{% endfor %}"
    "{% endif %}{{ '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write_llava(folder: Path, sizes: TinyModel) -> None:
    """Write the folder of a small LLaVA 1.5, with a CLIP tower and a Llama decoder."""
    from transformers import LlavaConfig

    vocabulary = write_tokenizer(
        folder,
        special=("<pad>", "<s>", "</s>", "<image>"),
        names={"image_token": "<image>"},
        template=_LLAVA_TEMPLATE,
        begin="<s>",
        end="</s>",
        pad="<pad>",
    )
    config = LlavaConfig(
        text_config=text_config(sizes, vocabulary, "llama") | _token_ids(vocabulary),
        vision_config=_vision(sizes, "clip_vision_model"),
        image_token_index=vocabulary["<image>"],
        image_seq_length=_PATCHES,
        # One more than in the released models, whose last layer is left out as well.
        vision_feature_layer=-2,
        tie_word_embeddings=sizes.tied,
    )
    ids = {"end": vocabulary["</s>"], "pad": vocabulary["<pad>"]}
    write_config(folder, config, "LlavaForConditionalGeneration", **ids)
    images = {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": _SIDE},
        "crop_size": {"height": _SIDE, "width": _SIDE},
    }
    write_json(folder / "preprocessor_config.json", images)
    processor = {
        "processor_class": "LlavaProcessor",
        "patch_size": _PATCH,
        "num_additional_image_tokens": 1,
        "vision_feature_select_strategy": "default",
    }
    write_json(folder / "processor_config.json", processor)


def write_llava_onevision(folder: Path, sizes: TinyModel) -> None:
    """Write the folder of a small LLaVA-OneVision, with a SigLIP tower and a Qwen2 decoder."""
    from transformers import LlavaOnevisionConfig

    vocabulary = write_tokenizer(
        folder,
        special=("<pad>", "<|im_start|>", "<|im_end|>", "<image>", "<video>"),
        names={"image_token": "<image>", "video_token": "<video>"},
        template=_ONEVISION_TEMPLATE,
        end="<|im_end|>",
        pad="<pad>",
    )
    resolutions = [[_SIDE * rows, _SIDE * columns] for rows in (1, 2) for columns in (1, 2, 3)]
    aspect = "anyres_max_3"
    config = LlavaOnevisionConfig(
        text_config=text_config(sizes, vocabulary, "qwen2"),
        vision_config=_vision(sizes, "siglip_vision_model") | {"vision_use_head": False},
        image_token_index=vocabulary["<image>"],
        video_token_index=vocabulary["<video>"],
        image_grid_pinpoints=resolutions,
        vision_aspect_ratio=aspect,
        tie_word_embeddings=sizes.tied,
    )
    ids = {"end": vocabulary["<|im_end|>"], "pad": vocabulary["<pad>"]}
    write_config(folder, config, "LlavaOnevisionForConditionalGeneration", **ids)
    images = {
        "image_processor_type": "LlavaOnevisionImageProcessor",
        "size": {"height": _SIDE, "width": _SIDE},
        "image_grid_pinpoints": resolutions,
    }
    write_json(folder / "preprocessor_config.json", images)
    video = {
        "processor_class": "LlavaOnevisionProcessor",
        "video_processor_type": "LlavaOnevisionVideoProcessor",
        "size": {"height": _SIDE, "width": _SIDE},
        "num_frames": 4,
        "do_sample_frames": True,
    }
    write_json(folder / "video_preprocessor_config.json", video)
    processor = {
        "processor_class": "LlavaOnevisionProcessor",
        "num_image_tokens": _PATCHES,
        "vision_feature_select_strategy": "full",
        "vision_aspect_ratio": aspect,
    }
    write_json(folder / "processor_config.json", processor)


def _vision(sizes: TinyModel, kind: str) -> dict[str, Any]:
    return {
        "model_type": kind,
        "hidden_size": sizes.vision_width,
        "intermediate_size": 2 * sizes.vision_width,
        "num_hidden_layers": sizes.vision_depth,
        "num_attention_heads": sizes.vision_heads,
        "image_size": _SIDE,
        "patch_size": _PATCH,
    }


def _token_ids(vocabulary: dict[str, int]) -> dict[str, int]:
    return {
        "bos_token_id": vocabulary["<s>"],
        "eos_token_id": vocabulary["</s>"],
        "pad_token_id": vocabulary["<pad>"],
    }
