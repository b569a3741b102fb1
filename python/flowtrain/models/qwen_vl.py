"""What the Qwen-VL families have in common: tokens, images, videos and positions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import PreTrainedTokenizerBase

from flowtrain.cost.flops import Grid, Side
from flowtrain.cost.layers import Layer, Saved
from flowtrain.cost.tower import Block, Norm, projector_layer, tower_layers
from flowtrain.models import attention
from flowtrain.models.family import Vocabulary
from flowtrain.models.frame_cache import FrameCache
from flowtrain.models.huggingface import HuggingFaceFamily, bypass, without_bypass
from flowtrain.models.images import NO_LIMITS, PixelLimits
from flowtrain.models.mrope import mrope_positions
from flowtrain.models.qwen_images import QwenImageProcessor

_PLACEHOLDERS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")


class QwenVL(HuggingFaceFamily):
    """Patches of all images side by side in the tower, and four rows of positions.

    Attributes:
        name: Name of the family, for messages.
        fused: Whether one linear layer of the tower makes query, key and value.
    """

    name: ClassVar[str]
    fused: ClassVar[bool] = True
    image_modules: ClassVar[tuple[str, ...]] = ("visual",)
    tower_attention = attention.NAME
    axes = 4

    def __init__(self, folder: Path, *, projector_side: Side) -> None:
        super().__init__(folder, projector_side=projector_side)
        self.video_id = self.config.video_token_id
        self._frames = FrameCache()
        vision = self.config.vision_config
        self._merge: int = vision.spatial_merge_size
        self._block_width: int = self._merge**2 * vision.hidden_size
        self._patch_values: int = (
            vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        )

    def vocabulary(self, tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
        ids = [getattr(self.config, name, None) for name in _PLACEHOLDERS]
        placeholders: Any = tokenizer.convert_ids_to_tokens([i for i in ids if i is not None])
        video_mark: Any = tokenizer.convert_ids_to_tokens(self.config.video_token_id)
        return Vocabulary(
            size=self.config.get_text_config().vocab_size,
            image_id=self.image_id,
            image_start_id=self.config.vision_start_token_id,
            placeholders=tuple(placeholders),
            video_mark=video_mark,
            images_may_touch=False,
        )

    def image_processor(self, limits: PixelLimits = NO_LIMITS) -> QwenImageProcessor:
        return QwenImageProcessor(self._folder, self.config.vision_config, limits)

    def _bypass_projector(self, model: Any) -> None:
        visual = model.visual
        for merger in (visual.merger, *getattr(visual, "deepstack_merger_list", ())):
            bypass(merger, self._blocks)

    def _blocks(self, patches: torch.Tensor) -> torch.Tensor:
        """The patches of each block side by side, as mergers take them."""
        return patches.reshape(-1, self._block_width)

    def _tower_layers(
        self,
        embedding_saved: Sequence[Saved],
        *,
        norm: Norm = "layer",
        gated: bool = False,
        windowed: Collection[int] = (),
    ) -> list[Layer]:
        vision = self.config.vision_config
        # Cosines and sines of the rotary positions, of which all blocks have one copy.
        rotary = Saved("patches", 2 * (vision.hidden_size // vision.num_heads), itemsize=4)
        return tower_layers(
            embedding="model.visual.patch_embed",
            blocks="model.visual.blocks",
            depth=vision.depth,
            block=Block(
                width=vision.hidden_size,
                heads=vision.num_heads,
                inner=vision.intermediate_size,
                activation=vision.hidden_act,
                gated=gated,
                norm=norm,
                packed=True,
                fused=self.fused,
            ),
            patch_values=self._patch_values,
            embedding_saved=(*embedding_saved, rotary),
            windowed=windowed,
        )

    def _merger_layer(
        self, path: str, norm: Sequence[Saved], *, reaches_loss: bool = True
    ) -> Layer:
        width = self._block_width
        return projector_layer(
            f"model.visual.{path}",
            width=width,
            hidden=width,
            out=self.config.vision_config.out_hidden_size,
            activation="gelu",
            norm=norm,
            reaches_loss=reaches_loss,
        )

    def _merged(self, merger: Any, blocks: torch.Tensor) -> torch.Tensor:
        """Features of blocks."""
        patches = blocks.reshape(-1, self._block_width // self._merge**2)
        return without_bypass(merger, patches)

    def position_ids(
        self,
        mm_token_type_ids: torch.Tensor,
        grids: Sequence[Grid],
        doc_lengths: Sequence[int],
        seconds: Sequence[float] = (),
    ) -> torch.Tensor:
        blocks, steps = self._blocks_of(grids, seconds or [0.0] * len(grids))
        return mrope_positions(
            mm_token_type_ids, blocks, doc_lengths, merge=self._merge, family=self.name, steps=steps
        )

    @abstractmethod
    def _blocks_of(
        self, grids: Sequence[Grid], seconds: Sequence[float]
    ) -> tuple[Sequence[Grid], Sequence[float]]:
        """Grids of the blocks of images and videos, and the temporal positions of a frame in each.

        Args:
            grids: Of the images and videos.
            seconds: For each the seconds between the frames of a video, or 0 for an image.
        """
