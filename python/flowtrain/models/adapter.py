"""The seam between FlowTrain and a family of Hugging Face VLMs."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from flowtrain.models.errors import ModelError
from flowtrain.models.versions import require_transformers

Part = Literal["encoder", "backbone", "full"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedBatch:
    """Documents side by side in one row.

    Attributes:
        input_ids: Shape [tokens].
        labels: Shape [tokens], not shifted, -100 off target.
        position_ids: Shape [4, tokens]: text, temporal, height, width; each document from 0.
        doc_lengths: Tokens of each document, in order.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor
    doc_lengths: list[int]

    def boundaries(self) -> torch.Tensor:
        """Document boundaries on the host, shape [documents + 1]."""
        return torch.tensor([0, *self.doc_lengths]).cumsum(0)


@dataclass(frozen=True, slots=True)
class LossOutput:
    """Sum of the cross entropies of the target tokens (0-dim), and their number."""

    loss_sum: torch.Tensor
    num_targets: int


class VLMAdapter(ABC):
    """What the flow asks of a model family.

    Attributes:
        config: The Hugging Face configuration.
        seam_width: Values that one image token carries over the seam, all taps together.
        encoder_prefix: Start of the names of the encoder's parameters in the full model.
    """

    config: Any
    seam_width: int
    encoder_prefix: str

    @abstractmethod
    def build(
        self,
        part: Part,
        *,
        weights: Path | None,
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> torch.nn.Module:
        """A part of the model, with the parameter names of the full one.

        Args:
            part: What to keep.
            weights: Folder to load from, or None to draw all weights from the seed, the same
                as `torch.manual_seed(seed); AutoModelForImageTextToText.from_config(config)`.
            seed: Seed of drawn weights.
            dtype: Dtype that weights are cast to after they were drawn or loaded.
            device: Where the part goes.

        Raises:
            ModelError: The folder lacks a weight.
        """

    @abstractmethod
    def encode(
        self, encoder: torch.nn.Module, pixel_values: torch.Tensor, grids: torch.Tensor
    ) -> torch.Tensor:
        """Image tokens, shape [tokens, seam_width].

        Args:
            encoder: The part `encoder`.
            pixel_values: Patches of all images, shape [patches, patch_dim].
            grids: Temporal, height and width of each in patches, shape [images, 3].
        """

    @abstractmethod
    def position_ids(
        self, input_ids: torch.Tensor, mm_token_type_ids: torch.Tensor, grids: torch.Tensor
    ) -> torch.Tensor:
        """Positions of one document, shape [4, tokens].

        Args:
            input_ids: Shape [tokens].
            mm_token_type_ids: 0 for text, 1 for image tokens, shape [tokens].
            grids: Shape [images, 3].
        """

    @abstractmethod
    def loss(
        self, backbone: torch.nn.Module, batch: PackedBatch, features: torch.Tensor | None
    ) -> LossOutput:
        """Loss of packed documents that do not see each other.

        Args:
            backbone: The part `backbone`.
            batch: The documents.
            features: Their image tokens in order, shape [image tokens, seam_width], or None
                where there is no image.
        """


def _qwen3_vl(folder: Path) -> VLMAdapter:
    from flowtrain.models.qwen3_vl import Qwen3VLAdapter

    return Qwen3VLAdapter(folder)


ADAPTERS: dict[str, Callable[[Path], VLMAdapter]] = {"qwen3_vl": _qwen3_vl}


def adapter_for(folder: Path) -> VLMAdapter:
    """The adapter of a local Hugging Face folder.

    Raises:
        ModelError: The folder has no config.json that can be read, its model type has no adapter,
            or the installed transformers cannot be used.
    """
    path = folder / "config.json"
    if not path.exists():
        raise ModelError(f"{folder}: no config.json; give a local Hugging Face model folder")
    try:
        kind = json.loads(path.read_text()).get("model_type")
    except ValueError as error:
        raise ModelError(f"{path}: not JSON ({error}); mend it") from error
    if kind not in ADAPTERS:
        raise ModelError(f"{path}: model_type={kind}: no adapter; there is {', '.join(ADAPTERS)}")
    # First, as the file of an adapter imports names that other versions lack.
    require_transformers()
    return ADAPTERS[kind](folder)
