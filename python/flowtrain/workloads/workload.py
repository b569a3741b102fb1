"""Input of schedulers: token counts, visual tokens and analytic costs of samples."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

IntArray = NDArray[numpy.int64]
FloatArray = NDArray[numpy.float64]

# Forward FLOPs per token, and per pair of tokens, of a decoder of Qwen2.5-7B's shape: 28 layers,
# width 3584, 512 key-value channels, gated width 18944, vocabulary 152064.
_LAYERS, _WIDTH, _KV, _GATED, _VOCABULARY = 28, 3584, 512, 18944, 152064
_PER_TOKEN = (
    _LAYERS * (2 * (2 * _WIDTH**2 + 2 * _WIDTH * _KV) + 6 * _WIDTH * _GATED)
    + 2 * _WIDTH * _VOCABULARY
)
_PER_PAIR = 2 * _WIDTH * _LAYERS


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Samples of one step.

    Attributes:
        name: Name of the preset or file.
        tokens: Tokens of each sample, of text and of all encoders, shape [num_samples].
        visual_tokens: Visual tokens of each sample, shape [num_samples].
        cost: Forward FLOPs of the decoder, shape [num_samples].
        encoder_cost: Forward FLOPs of the vision encoder, shape [num_samples]; 0 without images.
        images: Images, or frames of a video that are encoded apart, over which the visual tokens of
            each sample spread, shape [num_samples]; None is one for each sample with visual tokens.
        audio_tokens: Audio tokens of each sample, shape [num_samples]; None is none.
        clips: Clips of audio, over which the audio tokens of each sample spread, shape
            [num_samples]; None is one for each sample with audio tokens.
        bad: Further samples of the data set that cannot be used.
    """

    name: str
    tokens: IntArray
    visual_tokens: IntArray
    cost: FloatArray
    encoder_cost: FloatArray
    images: IntArray | None = None
    audio_tokens: IntArray | None = None
    clips: IntArray | None = None
    bad: int = 0

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def digest(self) -> str:
        """SHA-256 of the sizes of the samples, in their order; costs follow from them."""
        found = hashlib.sha256()
        for sizes in (
            self.tokens,
            self.visual_tokens,
            self.images,
            self.audio_tokens,
            self.clips,
        ):
            found.update(b"-" if sizes is None else sizes.tobytes())
        return found.hexdigest()


def decoder_flops(tokens: IntArray) -> FloatArray:
    """Forward FLOPs of a 7B decoder (Qwen2.5-7B), with causal attention counted half.

    Attention is 5.5 % of the sum at 4,096 tokens, and half of it at about 70,000.
    """
    t = tokens.astype(numpy.float64)
    return t * _PER_TOKEN + t * t * _PER_PAIR


def native_encoder_flops(patches: IntArray) -> FloatArray:
    """Forward FLOPs of a vision tower of Qwen2.5-VL's shape for one image.

    32 layers of width 1280 and gated width 3456; four of them attend to the whole image, the
    others to windows of 64 patches; four patches merge into one token of width 3584.
    """
    p = patches.astype(numpy.float64)
    h, f, merged, width = 1280, 3456, 4, 3584
    linear = 32 * 2 * p * (4 * h * h + 3 * h * f)
    attention = 28 * 4 * h * p * 64 + 4 * 4 * h * p * p
    merger = 2 * p / merged * ((merged * h) ** 2 + merged * h * width)
    return linear + attention + merger
