"""Sizes of the models with which memory is measured."""

from __future__ import annotations

from flowtrain.models.tiny import TinyModel

# In all, states, activations and logits matter.
SIZES = {
    "42M": TinyModel(
        vision_width=256,
        vision_depth=6,
        taps=(1, 3),
        text_width=384,
        text_depth=6,
        text_intermediate=1024,
    ),
    "0.1B": TinyModel(
        vision_width=384,
        vision_depth=8,
        vision_heads=6,
        taps=(2, 5),
        text_width=640,
        text_depth=8,
        text_heads=10,
        text_kv_heads=2,
        text_intermediate=1728,
    ),
    "0.3B": TinyModel(
        vision_width=768,
        vision_depth=12,
        vision_heads=12,
        taps=(3, 7),
        text_width=1024,
        text_depth=10,
        text_heads=16,
        text_kv_heads=4,
        text_intermediate=2816,
    ),
}
"""By their parameters, with the vocabularies of `bench_memory.py`."""
