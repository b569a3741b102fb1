"""A small InternVL: tiles of 16 pixels, each of four tokens."""

from __future__ import annotations

from pathlib import Path

from flowtrain.models.tiny.decoder import text_config, write_config, write_json
from flowtrain.models.tiny.sizes import TinyModel
from flowtrain.models.tiny.tokenizer import chatml, write_tokenizer

_SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<img>",
    "</img>",
    "<IMG_CONTEXT>",
    "<video>",
)
_NAMES = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
_SIDE = 16


def write_internvl(folder: Path, sizes: TinyModel) -> None:
    """Write the folder of a small InternVL with a Qwen2 decoder."""
    from transformers import InternVLConfig

    vocabulary = write_tokenizer(
        folder,
        special=_SPECIAL,
        names=_NAMES,
        template=chatml("<IMG_CONTEXT>\\n", "<video>\\n"),
        end="<|im_end|>",
        pad="<|endoftext|>",
    )
    end, pad = vocabulary["<|im_end|>"], vocabulary["<|endoftext|>"]
    config = InternVLConfig(
        text_config=text_config(sizes, vocabulary, "qwen2")
        | {"bos_token_id": None, "pad_token_id": pad, "eos_token_id": end},
        vision_config={
            "hidden_size": sizes.vision_width,
            "intermediate_size": 2 * sizes.vision_width,
            "num_hidden_layers": sizes.vision_depth,
            "num_attention_heads": sizes.vision_heads,
            "image_size": [_SIDE, _SIDE],
            "patch_size": [4, 4],
        },
        image_token_id=vocabulary["<IMG_CONTEXT>"],
        image_seq_length=4,
        tie_word_embeddings=sizes.tied,
    )
    write_config(folder, config, "InternVLForConditionalGeneration", end=end, pad=pad)
    images = {
        "image_processor_type": "GotOcr2ImageProcessor",
        "size": {"height": _SIDE, "width": _SIDE},
        "max_patches": 4,
    }
    write_json(folder / "preprocessor_config.json", images)
    video = {
        "processor_class": "InternVLProcessor",
        "video_processor_type": "InternVLVideoProcessor",
        "size": {"height": _SIDE, "width": _SIDE},
        "num_frames": 4,
        "do_sample_frames": True,
    }
    write_json(folder / "video_preprocessor_config.json", video)
    processor = {"processor_class": "InternVLProcessor", "image_seq_length": 4}
    write_json(folder / "processor_config.json", processor)
