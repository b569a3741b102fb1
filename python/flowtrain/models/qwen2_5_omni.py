"""Qwen2.5-Omni's thinker: Qwen2.5-VL with an audio tower beside the vision tower; for plans alone.

FlowTrain does not train it, so that it is not in the registry of families.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from flowtrain.cost.audio import audio_layers
from flowtrain.cost.decoder import decoder_layers
from flowtrain.cost.flops import Side
from flowtrain.cost.layers import Counts, Layer
from flowtrain.cost.tower import Block
from flowtrain.models.qwen2_5_vl import Qwen25VL

TOWER = "model.audio_tower"
"""Path of the audio tower."""


class Qwen25OmniThinker(Qwen25VL):
    """The model that reads; those that speak are no part of it."""

    name = "Qwen2.5-Omni"
    image_modules = ("visual", "audio_tower")
    projector_modules = ("visual.merger", "audio_tower.ln_post", "audio_tower.proj")
    fused = False

    def __init__(self, folder: Path, *, projector_side: Side) -> None:
        super().__init__(folder, projector_side=projector_side)
        audio = self.config.audio_config
        self.audio_row_width: int = (
            audio.output_dim if projector_side == "encoder" else audio.d_model
        )

    @staticmethod
    def _read_config(folder: Path) -> Any:
        config = Qwen25VL._read_config(folder)
        # The folder of the whole model has the thinker's as one of three.
        return getattr(config, "thinker_config", config)

    def meta_model(self) -> torch.nn.Module:
        from transformers import Qwen2_5OmniThinkerForConditionalGeneration

        with torch.device("meta"):
            model: Any = Qwen2_5OmniThinkerForConditionalGeneration._from_config(self.config)
        # The processor writes the tokens around a clip, so that nothing reads their embeddings.
        model.model.audio_tower.audio_bos_eos_token.requires_grad_(False)
        self._prepare(model)
        return model

    @cached_property
    def layers(self) -> Sequence[Layer]:
        text = decoder_layers(self.config.get_text_config())
        return (*self._image_layers(), *self._audio_layers(), *text)

    def _audio_layers(self) -> Sequence[Layer]:
        audio = self.config.audio_config
        return audio_layers(
            path=TOWER,
            mel_bins=audio.num_mel_bins,
            depth=audio.encoder_layers,
            block=Block(
                width=audio.d_model,
                heads=audio.encoder_attention_heads,
                inner=audio.encoder_ffn_dim,
                activation=audio.activation_function,
                packed=True,
                rotary=False,
                fused=False,
            ),
            out=audio.output_dim,
        )

    def audio_counts(self, frames: int) -> Counts:
        """How much of each unit of the audio tower a clip has.

        Args:
            frames: Frames of its spectrogram, 100 of them a second.
        """
        chunk = 2 * self.config.audio_config.n_window
        whole, rest = divmod(frames, chunk)
        lengths = [chunk] * whole + ([rest] if rest else [])
        tokens = [_halved(length) for length in lengths]
        return Counts(
            patches=len(tokens) * max(tokens),
            vision_tokens=sum(tokens),
            window_pairs=sum(count**2 for count in tokens),
            projected=_halved(frames) // 2,
        )


def _halved(frames: int) -> int:
    """Outputs of a convolution of stride 2."""
    return (frames + 1) // 2
