"""The interface between FlowTrain and a family of Hugging Face VLMs.

Whatever holds only for one family (token names, configuration keys, formulas, weight names) is in
the file of its adapter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from flowtrain.cost.flops import Grid, ModuleFlops

if TYPE_CHECKING:
    from PIL.Image import Image

Part = Literal["encoder", "backbone", "full"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """Token ids with a meaning to the model.

    Attributes:
        size: Number of embeddings.
        image_id: The token that stands for an image, and for each of its tokens.
        image_start_id: The token in front of an image, or None.
        placeholder_ids: Tokens that a text must not contain, as the model would take them for an
            image or a video.
    """

    size: int
    image_id: int
    image_start_id: int | None
    placeholder_ids: tuple[int, ...]


class ImageProcessor(ABC):
    """The image processor of a model: from pixels to patches.

    Attributes:
        patch_dim: Values of a patch.
    """

    patch_dim: int

    @abstractmethod
    def smallest_grid(self) -> Grid:
        """Grid of the smallest image."""

    @abstractmethod
    def grid(self, height: int, width: int) -> Grid:
        """Grid of an image of this size in pixels.

        Raises:
            ValueError: The processor does not take images of this size.
        """

    @abstractmethod
    def num_tokens(self, grid: Grid) -> int:
        """Tokens of an image with this grid."""

    @abstractmethod
    def patches(self, image: Image) -> tuple[NDArray[np.float32], Grid]:
        """Patches of an image, shape [patches, patch_dim], and their grid.

        Raises:
            ValueError: The processor does not take this image.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedBatch:
    """Documents side by side in one row.

    Attributes:
        input_ids: Shape [tokens].
        labels: Shape [tokens], not shifted; -100 where a token is no target.
        position_ids: Shape [4, tokens]: text, temporal, height, width. Each document starts at 0.
        doc_lengths: Tokens of each document, in order.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    position_ids: torch.Tensor
    doc_lengths: list[int]


@dataclass(frozen=True, slots=True)
class LossOutput:
    """Sum of the cross entropies of the target tokens (0-dim), and their number."""

    loss_sum: torch.Tensor
    num_targets: int


class VLMAdapter(ABC):
    """Interface of a model family, for one model folder.

    Attributes:
        config: The Hugging Face configuration.
        vocabulary: Token ids with a meaning to the model.
        row_width: Values in a row of a record: those of one image token that the encoder sends.
        encoder_prefix: Prefix of the encoder's parameter names in the full model.
    """

    config: Any
    vocabulary: Vocabulary
    row_width: int
    encoder_prefix: str

    def part_of(self, name: str) -> Part:
        """The part that a parameter of the full model belongs to."""
        return "encoder" if name.startswith(self.encoder_prefix) else "backbone"

    def parameter_counts(self) -> dict[Part, int]:
        """Number of parameters of the encoder and of the backbone."""
        from transformers import AutoModelForImageTextToText

        with torch.device("meta"):
            model = AutoModelForImageTextToText.from_config(self.config)
        counts: dict[Part, int] = {"encoder": 0, "backbone": 0}
        for name, parameter in model.named_parameters():
            counts[self.part_of(name)] += parameter.numel()
        return counts

    def image_flops(self, grid: Grid) -> float:
        """Forward FLOPs of the encoder, with the projector, for an image of this grid."""
        flops = self.sample_flops(0, [grid], num_targets=0)
        return flops.encoder + flops.projector

    @abstractmethod
    def image_processor(self) -> ImageProcessor:
        """The image processor of the folder.

        Raises:
            ModelError: Its patches are not those of the model.
            OSError: The folder has none.
        """

    @abstractmethod
    def sample_flops(
        self, num_tokens: int, grids: Sequence[Grid], *, num_targets: int
    ) -> ModuleFlops:
        """Forward FLOPs of a sample: matrix products only, as is usual for MFU.

        Causal attention is counted half. The output head runs on target tokens alone.

        Args:
            num_tokens: Tokens of the sample, image tokens included.
            grids: Frames, height and width of each image in patches.
            num_targets: Target tokens.
        """

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
        """A part of the model, with the parameter names of the full model.

        Args:
            part: The part to build.
            weights: Folder to load from, or None to draw all weights from the seed, as
                `torch.manual_seed(seed); AutoModelForImageTextToText.from_config(config)` does.
            seed: Seed of drawn weights.
            dtype: Dtype of the weights. Drawn weights are drawn in float32 and then cast.
            device: Device of the part.

        Raises:
            ModelError: The folder lacks a weight.
        """

    @abstractmethod
    def encode(
        self, encoder: torch.nn.Module, pixel_values: torch.Tensor, grids: torch.Tensor
    ) -> torch.Tensor:
        """Encode images.

        Args:
            encoder: The part `encoder`.
            pixel_values: Patches of all images, shape [patches, patch_dim].
            grids: Frames, height and width of each in patches, shape [images, 3]; on the host, as
                the encoder would otherwise wait for the device.

        Returns:
            Features of the image tokens, shape [tokens, row_width].
        """

    @abstractmethod
    def position_ids(
        self,
        input_ids: torch.Tensor,
        mm_token_type_ids: torch.Tensor,
        grids: torch.Tensor,
        doc_lengths: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Positions of packed documents, shape [4, tokens]; each document starts at 0.

        Args:
            input_ids: Shape [tokens], on the host.
            mm_token_type_ids: 0 for text, 1 for image tokens, shape [tokens].
            grids: Of the images of all documents in order, shape [images, 3].
            doc_lengths: Tokens of each document, none of them empty; None for one document.
        """

    @abstractmethod
    def loss(
        self, backbone: torch.nn.Module, batch: PackedBatch, features: torch.Tensor | None
    ) -> LossOutput:
        """Loss of packed documents, each of which attends to itself alone.

        Args:
            backbone: The part `backbone`.
            batch: The documents.
            features: Features of their image tokens in order, shape [image tokens, row_width],
                or None if there is no image.
        """
