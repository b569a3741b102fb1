"""The interface between FlowTrain and a family of vision-language models.

Whatever holds only for one family (token names, configuration keys, formulas, weight names) is in
the file of that family.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from flowtrain.config.lora import LoraConfig
from flowtrain.config.model import Part
from flowtrain.cost.flops import Grid, ModuleFlops, Side
from flowtrain.cost.layers import Counts, ForwardFlops, Layer
from flowtrain.models.errors import ModelError
from flowtrain.models.images import NO_LIMITS, ImageProcessor, PixelLimits
from flowtrain.models.packed_batch import LossOutput, PackedBatch
from flowtrain.models.videos import FAMILIES_WITH_VIDEO, NO_VIDEO_LIMITS, VideoLimits

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from flowtrain.models.video_processor import VideoProcessor


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """Token ids with a meaning to the model.

    Attributes:
        size: Number of embeddings.
        image_id: The token that stands for an image, and for each of its tokens.
        image_start_id: The token in front of an image, or None.
        placeholders: Tokens that a text must not contain, as the processor would take them for an
            image or a video.
        image_text: What the processor writes in place of the token that the chat template renders
            for an image, with that token once; None if it only repeats the token.
        video_mark: What the chat template renders for a video, or None if the family has none.
        images_may_touch: Whether two images without a token between them remain two images.
    """

    size: int
    image_id: int
    image_start_id: int | None
    placeholders: tuple[str, ...]
    image_text: str | None = None
    video_mark: str | None = None
    images_may_touch: bool = True


class Family(ABC):
    """A model family, for one model folder.

    `docs/families.md` shows how to write one.

    Attributes:
        config: The Hugging Face configuration.
        image_id: The token that stands for each token of an image.
        video_id: The same for a video; None if the family has no videos.
        projector_side: The side of the cut on which the projector is computed.
        fields: The fields of a row that crosses the pool, by name, with their widths in values.
            A row holds them side by side, in this order.
        axes: Rows of the position ids.
        takes_adapters: Whether `build` and `meta_model` add the adapters of `lora`.
        lora: Adapters of the model.
    """

    config: Any
    image_id: int
    video_id: int | None = None
    projector_side: Side
    fields: Mapping[str, int]
    axes: ClassVar[int]
    takes_adapters: ClassVar[bool] = False
    lora: LoraConfig = LoraConfig()

    @property
    def row_width(self) -> int:
        """Values of a row that crosses the pool."""
        return sum(self.fields.values())

    @property
    def visual_ids(self) -> tuple[int, ...]:
        """Ids of the tokens of images and videos."""
        return (self.image_id, *(() if self.video_id is None else (self.video_id,)))

    @abstractmethod
    def part_of(self, name: str) -> Part:
        """The part that a parameter or buffer of the full model belongs to."""

    def side_of(self, name: str) -> Side:
        """The side of the cut on which a parameter or buffer of the full model lies."""
        part = self.part_of(name)
        return self.projector_side if part == "projector" else part

    def parameter_sizes(self) -> dict[str, int]:
        """Number of values of each parameter of the full model."""
        return {name: parameter.numel() for name, parameter in self.meta_model().named_parameters()}

    def trainable_sizes(self) -> dict[str, int]:
        """Number of values of each parameter that the loss depends on."""
        return {
            name: parameter.numel()
            for name, parameter in self.meta_model().named_parameters()
            if parameter.requires_grad
        }

    def meta_model(self) -> torch.nn.Module:
        """The full model as `build` makes it, with shapes and without values.

        Raises:
            ConfigError: An adapter has no layer.
        """
        from transformers import AutoModelForImageTextToText

        with torch.device("meta"):
            model: torch.nn.Module = AutoModelForImageTextToText.from_config(self.config)
        return model

    def parameter_counts(self) -> dict[Side, int]:
        """Number of parameters on each side of the cut."""
        counts: dict[Side, int] = {"encoder": 0, "backbone": 0}
        for name, size in self.parameter_sizes().items():
            counts[self.side_of(name)] += size
        return counts

    def image_flops(self, grid: Grid) -> float:
        """Forward FLOPs of an image of this grid in front of the cut."""
        return self.sample_flops(0, [grid], num_targets=0).on("encoder", self.projector_side)

    def image_rows(self, grid: Grid, num_tokens: int) -> int:
        """Rows that cross the pool for an image.

        Args:
            grid: Its grid.
            num_tokens: Its tokens.
        """
        return num_tokens

    @abstractmethod
    def image_processor(self, limits: PixelLimits = NO_LIMITS) -> ImageProcessor:
        """The image processor of the folder.

        Args:
            limits: Take the place of the processor's own.

        Raises:
            ModelError: Its patches are not those of the model, or the family does not scale images
                by limits.
            OSError: The folder has none.
        """

    def video_processor(self, limits: VideoLimits = NO_VIDEO_LIMITS) -> VideoProcessor:
        """The video processor of the folder.

        Args:
            limits: Take the place of the processor's own.

        Raises:
            ModelError: The family has no videos, or the processor is not that of the model.
            OSError: The folder has none.
        """
        raise ModelError(
            f"{self.config.model_type} has no videos; families with videos are "
            f"{', '.join(FAMILIES_WITH_VIDEO)}: use one of them, or drop the line"
        )

    @abstractmethod
    def vocabulary(self, tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
        """Token ids with a meaning to the model.

        Args:
            tokenizer: The tokenizer of the folder.
        """

    @property
    @abstractmethod
    def layers(self) -> Sequence[Layer]:
        """Layers of the full model, in the order of the forward pass."""

    @abstractmethod
    def counts(
        self,
        num_tokens: int,
        grids: Sequence[Grid],
        *,
        num_targets: int,
        causal_share: float = 0.5,
    ) -> Counts:
        """How much of each unit of `layers` a sample has.

        Args:
            num_tokens: Tokens of the sample, image tokens included.
            grids: Grid of each image.
            num_targets: Target tokens, on which the output head runs.
            causal_share: Share of the pairs of tokens that the decoder's attention is counted for:
                0.5 for what causal attention needs, 1 for what a dense mask computes.
        """

    def block_names(self, side: Side) -> list[str]:
        """Paths of the blocks that a side of the cut computes, in order.

        Args:
            side: `encoder` for the blocks of the tower, `backbone` for the layers of the decoder.
        """
        return [
            layer.name
            for layer in self.layers
            if layer.takes is not None and not layer.left_out and self.side_of(layer.name) == side
        ]

    def blocks(self, module: torch.nn.Module) -> list[torch.nn.Module]:
        """The modules of these blocks, in order.

        Args:
            module: A side of the cut, or the whole model, whose blocks are those of both sides.
        """
        inside = dict(module.named_modules())
        names = [*self.block_names("encoder"), *self.block_names("backbone")]
        return [inside[name] for name in names if name in inside]

    @cached_property
    def _forward_flops(self) -> ForwardFlops:
        return ForwardFlops(self.layers)

    def sample_flops(
        self, num_tokens: int, grids: Sequence[Grid], *, num_targets: int
    ) -> ModuleFlops:
        """Forward FLOPs of a sample: matrix products only, as is usual for MFU.

        Causal attention is counted half. The output head runs on target tokens alone.

        Args:
            num_tokens: Tokens of the sample, image tokens included.
            grids: Grid of each image.
            num_targets: Target tokens.
        """
        return self._forward_flops(self.counts(num_tokens, grids, num_targets=num_targets))

    @abstractmethod
    def build(
        self,
        side: Side | Literal["full"],
        *,
        weights: Path | None,
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
        before_load: Callable[[torch.nn.Module], None] | None = None,
    ) -> torch.nn.Module:
        """The model or one side of the cut, with the parameter names of the full model.

        A side is an `Encoder` or a `Backbone`, and all that is computed with it is its forward.
        Parameters that the loss does not depend on do not require gradients, as a plain loop leaves
        them without one.

        Args:
            side: What to build.
            weights: Folder to load from, or None to draw all weights from the seed, as
                `torch.manual_seed(seed); AutoModelForImageTextToText.from_config(config)` does.
            seed: Seed of drawn weights.
            dtype: Dtype of the weights. Drawn weights are drawn in float32 and then cast.
            device: Device of the model. On `meta` it has no values; `loading.load_weights` gives
                them to a side, which may be sharded before.
            before_load: Called with a side on `meta` whose weights are read next, to choose other
                dtypes for some of them. They are then never in memory in `dtype`.

        Raises:
            ModelError: The folder cannot be used, or the model has a layer that cannot be packed.
            ConfigError: An adapter has no layer.
        """

    @abstractmethod
    def encode(
        self, encoder: torch.nn.Module, pixel_values: torch.Tensor, grids: Sequence[Grid]
    ) -> torch.Tensor:
        """Encode images and videos.

        Args:
            encoder: The model, or its side `encoder`.
            pixel_values: Pixels of all of them, as `ImageProcessor.normalize` and
                `VideoProcessor.normalize` make them, joined in the first dimension.
            grids: Grid of each.

        Returns:
            Rows that cross the pool, shape [rows, row_width].
        """

    @abstractmethod
    def position_ids(
        self,
        mm_token_type_ids: torch.Tensor,
        grids: Sequence[Grid],
        doc_lengths: Sequence[int],
        seconds: Sequence[float] = (),
    ) -> torch.Tensor:
        """Positions of packed documents, shape [axes, tokens]; each document starts at 0.

        Args:
            mm_token_type_ids: 0 for text, 1 for image tokens, 2 for video tokens, shape [tokens],
                on the host.
            grids: Of the images and videos of all documents in order.
            doc_lengths: Tokens of each document, none of them empty.
            seconds: For each grid the seconds between the frames of a video, or 0 for an image;
                empty if there is no video.
        """

    @abstractmethod
    def next_tokens(
        self, backbone: torch.nn.Module, batch: PackedBatch, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """Ids of the most likely token after each document, shape [documents].

        Args:
            backbone: As for `loss`.
            batch: The documents; their labels are not used.
            rows: As for `loss`.
        """

    @abstractmethod
    def loss(
        self,
        backbone: torch.nn.Module,
        batch: PackedBatch,
        rows: torch.Tensor | None,
        *,
        logit_bytes: int | None = None,
    ) -> LossOutput:
        """Loss of packed documents, each of which attends to itself alone.

        Args:
            backbone: The model, or its side `backbone`.
            batch: The documents.
            rows: What `encode` returned for their images in order, or None if there is no image.
            logit_bytes: Maximum bytes of the float32 logits that are held at once; None for no
                limit. With more, their gradients are computed chunk by chunk.
        """
