"""Small Qwen3-VL, dense and with experts, and Qwen2.5-VL: 8 pixels a side are one image token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowtrain.models.tiny.decoder import text_config, write_config, write_json
from flowtrain.models.tiny.sizes import TinyModel
from flowtrain.models.tiny.tokenizer import chatml, write_tokenizer

_SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
_NAMES = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "turn_token": "<|im_start|>",
}

_PROCESSOR = {
    "patch_size": 4,
    "merge_size": 2,
    "temporal_patch_size": 2,
    # Limits that no strip reaches, so that none is scaled.
    "size": {"shortest_edge": 64, "longest_edge": 1 << 20},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def write_qwen3_vl(folder: Path, sizes: TinyModel) -> None:
    """Write the folder of a small Qwen3-VL."""
    from transformers import Qwen3VLConfig

    _write_qwen3(folder, sizes, Qwen3VLConfig, "Qwen3VLForConditionalGeneration", {})


def write_qwen3_vl_moe(folder: Path, sizes: TinyModel) -> None:
    """Write the folder of a small Qwen3-VL whose MLPs are eight experts, two for each token."""
    from transformers import Qwen3VLMoeConfig

    experts = {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        # No matrix of an expert is square, so that its shape says which way it is stored.
        "moe_intermediate_size": 2 * sizes.text_width // 3,
    }
    _write_qwen3(folder, sizes, Qwen3VLMoeConfig, "Qwen3VLMoeForConditionalGeneration", experts)


def _write_qwen3(
    folder: Path, sizes: TinyModel, kind: Any, architecture: str, text: dict[str, Any]
) -> None:
    vision = {
        "intermediate_size": 2 * sizes.vision_width,
        "num_position_embeddings": 256,
        "deepstack_visual_indexes": list(sizes.taps),
    }
    _write(folder, sizes, kind, architecture, vision, text)
    video = {
        **_PROCESSOR,
        "processor_class": "Qwen3VLProcessor",
        "video_processor_type": "Qwen3VLVideoProcessor",
        "fps": 2,
        "min_frames": 4,
        "max_frames": 16,
    }
    write_json(folder / "video_preprocessor_config.json", video)


def write_qwen2_5_vl(folder: Path, sizes: TinyModel) -> None:
    """Write the folder of a small Qwen2.5-VL, with windows of two by two tokens."""
    from transformers import Qwen2_5_VLConfig

    vision = {
        "intermediate_size": 2 * sizes.vision_width,
        "window_size": 16,
        "fullatt_block_indexes": [sizes.vision_depth - 1],
    }
    _write(folder, sizes, Qwen2_5_VLConfig, "Qwen2_5_VLForConditionalGeneration", vision, {})


def _token_ids(end: int, pad: int) -> dict[str, int | None]:
    return {"bos_token_id": None, "eos_token_id": end, "pad_token_id": pad}


def _write(
    folder: Path,
    sizes: TinyModel,
    kind: Any,
    architecture: str,
    vision: dict[str, Any],
    text: dict[str, Any],
) -> None:
    vocabulary = write_tokenizer(
        folder,
        special=_SPECIAL,
        names=_NAMES,
        template=chatml(
            "<|vision_start|><|image_pad|><|vision_end|>",
            "<|vision_start|><|video_pad|><|vision_end|>",
        ),
        end="<|im_end|>",
        pad="<|endoftext|>",
    )
    end, pad = vocabulary["<|im_end|>"], vocabulary["<|endoftext|>"]
    text = text_config(sizes, vocabulary, f"{kind.model_type}_text") | text
    # Shares of the rotary frequencies for time, height and width, as in the released models.
    half = text["head_dim"] // 2
    rope = {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [half - 2 * (half // 3), half // 3, half // 3],
    } | ({"mrope_interleaved": True} if kind.model_type != "qwen2_5_vl" else {})
    config = kind(
        text_config=text | {"rope_parameters": rope, **_token_ids(end, pad)},
        vision_config={
            "depth": sizes.vision_depth,
            "hidden_size": sizes.vision_width,
            "num_heads": sizes.vision_heads,
            "in_channels": 3,
            "patch_size": 4,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": sizes.text_width,
            **vision,
        },
        image_token_id=vocabulary["<|image_pad|>"],
        video_token_id=vocabulary["<|video_pad|>"],
        vision_start_token_id=vocabulary["<|vision_start|>"],
        vision_end_token_id=vocabulary["<|vision_end|>"],
        tie_word_embeddings=sizes.tied,
    )
    write_config(folder, config, architecture, end=end, pad=pad)
    # The processors of Qwen-VL need torchvision for their video half. This processor of
    # transformers treats images alike and does not need it.
    processor = {
        "processor_class": "PaddleOCRVLProcessor",
        "image_processor_type": "Qwen2VLImageProcessor",
        **_PROCESSOR,
    }
    write_json(folder / "preprocessor_config.json", processor)
