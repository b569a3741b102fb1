"""Writes the Hugging Face folder of a small Qwen3-VL, without weights and without a download."""

from __future__ import annotations

import json
import string
from dataclasses import dataclass
from pathlib import Path

_SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
_ROLES = ("system", "user", "assistant")

_CHAT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == 'text' -%}{{ part.text }}{%- endif -%}
{%- endfor -%}
{%- endif -%}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""


@dataclass(frozen=True, kw_only=True, slots=True)
class TinyModel:
    """Sizes of a small Qwen3-VL. The defaults give about 3 M parameters."""

    vision_width: int = 128
    vision_depth: int = 4
    vision_heads: int = 4
    taps: tuple[int, ...] = (1, 2)
    """Vision blocks whose output is a deepstack tap."""
    text_width: int = 192
    text_depth: int = 4
    text_heads: int = 6
    text_kv_heads: int = 2
    text_intermediate: int = 512
    tied: bool = False
    """Whether input and output embeddings are one matrix, as in the released 2B and 4B."""


SMALLEST = TinyModel(
    vision_width=32,
    vision_depth=3,
    vision_heads=2,
    taps=(0, 1),
    text_width=48,
    text_depth=3,
    text_heads=4,
    text_kv_heads=2,
    text_intermediate=96,
)
"""Has every feature (deepstack, grouped heads) and trains a step in milliseconds."""


def write_tiny_model(folder: Path, sizes: TinyModel | None = None) -> None:
    """Write configuration, tokenizer and processor of a small Qwen3-VL for 8-pixel digits.

    Patches are 4 pixels wide and merged 2 by 2, so that a digit is one image token. The
    tokenizer has a token for each printable ASCII character and each role of a chat.

    Args:
        folder: Folder to write, created if it does not exist.
        sizes: Widths and depths.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = _write_tokenizer(folder)
    _write_config(folder, sizes or TinyModel(), vocabulary)
    _write_processor(folder)


def _write_tokenizer(folder: Path) -> dict[str, int]:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = [c for c in string.printable if c not in "\t\r\x0b\x0c"]
    words = [*_SPECIAL, "<|unknown|>", *_ROLES, *characters]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unknown|>"))
    # A role is one token; all other text is one token per character.
    tokenizer.pre_tokenizer = pre_tokenizers.Split(
        Regex(r"system|user|assistant|[\s\S]"), "isolated"
    )
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<|unknown|>",
        extra_special_tokens={
            "image_token": "<|image_pad|>",
            "video_token": "<|video_pad|>",
            "vision_bos_token": "<|vision_start|>",
            "vision_eos_token": "<|vision_end|>",
            "turn_token": "<|im_start|>",
        },
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = _CHAT_TEMPLATE
    fast.save_pretrained(folder)
    return vocabulary


def _write_config(folder: Path, sizes: TinyModel, vocabulary: dict[str, int]) -> None:
    from transformers import Qwen3VLConfig

    head = sizes.text_width // sizes.text_heads
    # Shares of the rotary frequencies for time, height and width, as in the released models.
    half = head // 2
    section = [half - 2 * (half // 3), half // 3, half // 3]
    config = Qwen3VLConfig(
        text_config={
            "vocab_size": len(vocabulary),
            "hidden_size": sizes.text_width,
            "intermediate_size": sizes.text_intermediate,
            "num_hidden_layers": sizes.text_depth,
            "num_attention_heads": sizes.text_heads,
            "num_key_value_heads": sizes.text_kv_heads,
            "head_dim": head,
            "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": section,
                "mrope_interleaved": True,
            },
            "pad_token_id": vocabulary["<|endoftext|>"],
            "eos_token_id": vocabulary["<|im_end|>"],
        },
        vision_config={
            "depth": sizes.vision_depth,
            "hidden_size": sizes.vision_width,
            "intermediate_size": 2 * sizes.vision_width,
            "num_heads": sizes.vision_heads,
            "in_channels": 3,
            "patch_size": 4,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": sizes.text_width,
            "num_position_embeddings": 256,
            "deepstack_visual_indexes": list(sizes.taps),
        },
        image_token_id=vocabulary["<|image_pad|>"],
        video_token_id=vocabulary["<|video_pad|>"],
        vision_start_token_id=vocabulary["<|vision_start|>"],
        vision_end_token_id=vocabulary["<|vision_end|>"],
        tie_word_embeddings=sizes.tied,
    )
    config.architectures = ["Qwen3VLForConditionalGeneration"]
    config.save_pretrained(folder)
    folder.joinpath("generation_config.json").write_text(
        json.dumps(
            {
                "eos_token_id": vocabulary["<|im_end|>"],
                "pad_token_id": vocabulary["<|endoftext|>"],
            }
        )
    )


def _write_processor(folder: Path) -> None:
    # Qwen3VLProcessor needs torchvision for its video half. This processor of transformers treats
    # images alike and does not need it.
    config = {
        "processor_class": "PaddleOCRVLProcessor",
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 4,
        "merge_size": 2,
        "temporal_patch_size": 2,
        # Limits that no strip reaches, so that none is scaled.
        "size": {"shortest_edge": 64, "longest_edge": 1 << 20},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    folder.joinpath("preprocessor_config.json").write_text(json.dumps(config, indent=2))
