"""Layers of an audio tower and of its projector."""

from __future__ import annotations

from flowtrain.cost.activations import layer_norm
from flowtrain.cost.layers import Layer, Product, Saved
from flowtrain.cost.tower import Block

_KERNEL = 3
_STRIDE = 2


def audio_layers(
    *, path: str, mel_bins: int, depth: int, block: Block, out: int
) -> tuple[Layer, ...]:
    """Two convolutions over a spectrogram, blocks, and a linear layer behind pairs of tokens.

    The second convolution has stride 2. Its outputs are `patches`, those of the padding that makes
    chunks equally long included, and `vision_tokens` without it; each chunk of these attends to
    itself. Two frames are counted for each output, one more than there are if their number is odd.

    Args:
        path: Path of the tower.
        mel_bins: Values of a frame of the spectrogram.
        depth: Blocks.
        block: Their sizes and kind.
        out: Values of a row of the projector.

    Source: the tower of Qwen2.5-Omni in transformers, which is Whisper's on chunks.
    """
    width = block.width
    first = Layer(
        name=f"{path}.conv1",
        part="encoder",
        products=(
            Product(
                "patches", 2.0 * _STRIDE * _KERNEL * mel_bins * width, is_first=True, side=width
            ),
        ),
        saved=(
            Saved("patches", _STRIDE * mel_bins, "weight"),
            # Input of the activation function, and the mask of the padding.
            Saved("patches", _STRIDE * width),
            Saved("patches", _STRIDE, itemsize=8),
        ),
    )
    second = Layer(
        name=f"{path}.conv2",
        part="encoder",
        products=(Product("patches", 2.0 * _KERNEL * width**2, side=width),),
        saved=(
            Saved("patches", _STRIDE * width, "weight"),
            Saved("patches", width),
            # Numbers of the outputs that are no padding.
            Saved("vision_tokens", 1, itemsize=8),
        ),
    )
    blocks = [
        Layer(
            name=f"{path}.layers.{number}",
            part="encoder",
            products=(
                block.linear(),
                Product("window_pairs", 4.0 * width, has_weight=False),
            ),
            saved=block.saved(),
            takes=("vision_tokens", width),
        )
        for number in range(depth)
    ]
    projector = Layer(
        name=f"{path}.proj",
        part="projector",
        products=(Product("projected", 2.0 * width * out, side=out),),
        saved=(
            # Numbers of both tokens of a pair.
            Saved("projected", 2, "input", itemsize=8),
            *layer_norm("projected", width),
            Saved("projected", width, "weight"),
        ),
    )
    return (first, second, *blocks, projector)
