"""InternVL: an image is cut into tiles, and patches of a tile are merged by pixel shuffle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from transformers import AutoImageProcessor, AutoTokenizer, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.video_utils import VideoMetadata

from flowtrain.cost.flops import Grid, Side
from flowtrain.cost.tower import Block
from flowtrain.models.family import Vocabulary
from flowtrain.models.images import NO_LIMITS, PixelLimits, required
from flowtrain.models.tile_family import TileFamily
from flowtrain.models.tile_videos import TileVideoProcessor
from flowtrain.models.tiles import TileProcessor
from flowtrain.models.video_processor import VideoProcessor
from flowtrain.models.videos import NO_VIDEO_LIMITS, VideoLimits

if TYPE_CHECKING:
    from PIL.Image import Image

# InternVLProcessor sets it, whatever the image processor's own file says.
_OPTIONS = {"crop_to_patches": True}


class InternVLImageProcessor(TileProcessor):
    """A grid is (tiles, 1, 1), with the thumbnail that follows several tiles.

    Args:
        folder: Hugging Face folder with the image processor.
        side: Height and width of a tile in pixels.
        tile_tokens: Tokens of a tile.
    """

    def __init__(self, folder: Path, *, side: int, tile_tokens: int) -> None:
        self._processor: Any = AutoImageProcessor.from_pretrained(folder)
        self._tile_tokens = tile_tokens
        super().__init__(str(folder), side=side)

    def grid(self, height: int, width: int, *, num_images: int) -> Grid:
        return self._processor.get_number_of_image_patches(height, width, _OPTIONS), 1, 1

    def num_tokens(self, grid: Grid) -> int:
        return grid[0] * self._tile_tokens

    def _process(self, image: Image, *, num_images: int, **options: Any) -> NDArray[Any]:
        # An image that is not scaled is not cut either.
        options = {"crop_to_patches": options.get("do_resize", True), **options}
        out: NDArray[Any] = self._processor(images=[image], return_tensors="np", **options)[
            "pixel_values"
        ]
        return out

    def read_inputs(self, inputs: Mapping[str, torch.Tensor]) -> tuple[list[Grid], torch.Tensor]:
        # Nothing tells which tiles are those of an image; their positions do not depend on it.
        tiles = required(inputs, "pixel_values")
        return [(len(tiles), 1, 1)], tiles


class InternVLVideoProcessor(TileVideoProcessor):
    """A grid is (frames, 1, 1), and each frame is a block with its number in front.

    Args:
        folder: Hugging Face folder with the video processor.
        limits: Take the place of the processor's own.
        side: Height and width of a tile in pixels.
        tile_tokens: Tokens of a tile.
        block: Text of a block, with the placeholder between the tokens for start and end.
    """

    def __init__(
        self, folder: Path, limits: VideoLimits, *, side: int, tile_tokens: int, block: str
    ) -> None:
        kind = "internvl.video_processing_internvl:InternVLVideoProcessor"
        super().__init__(folder, kind, limits, side=side)
        self._tile_tokens = tile_tokens
        self._block = block

    def num_tokens(self, grid: Grid) -> int:
        return grid[0] * self._tile_tokens

    def _grid_of_frames(self, frames: int) -> Grid:
        return frames, 1, 1

    def _text(self, metadata: VideoMetadata, grid: Grid) -> str:
        return "\n".join(f"Frame{number}: {self._block}" for number in range(1, grid[0] + 1))


class InternVL(TileFamily):
    """InternVL's tower, pixel shuffle, two linear layers, and a Qwen- or Llama-like decoder."""

    layers_name = "encoder.layer"
    normalizes_features = True

    def __init__(self, folder: Path, *, projector_side: Side) -> None:
        super().__init__(folder, projector_side=projector_side)
        self.video_id = self.image_id
        merged = int(1 / self.config.downsample_ratio) ** 2
        self._tower_width *= merged
        drops_first = self.config.vision_feature_select_strategy == "default"
        self._tokens = (self._tile_tokens - drops_first) // merged

    @property
    def unused_modules(self) -> tuple[str, ...]:  # type: ignore[override]
        # The output of the last layer is the only one that is normalized.
        return () if self._chosen == [-1] else ("layernorm",)

    def vocabulary(self, tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
        names: Any = tokenizer
        return Vocabulary(
            size=self.config.get_text_config().vocab_size,
            image_id=self.image_id,
            image_start_id=names.start_image_token_id,
            placeholders=(names.context_image_token, names.video_token),
            image_text=_block(tokenizer),
            video_mark=names.video_token,
        )

    def image_processor(self, limits: PixelLimits = NO_LIMITS) -> InternVLImageProcessor:
        self._refuse(limits)
        return InternVLImageProcessor(self._folder, side=self._side, tile_tokens=self._tokens)

    def video_processor(self, limits: VideoLimits = NO_VIDEO_LIMITS) -> VideoProcessor:
        return InternVLVideoProcessor(
            self._folder,
            limits,
            side=self._side,
            tile_tokens=self._tokens,
            block=_block(AutoTokenizer.from_pretrained(self._folder)),
        )

    @property
    def block(self) -> Block:
        vision = self.config.vision_config
        known = vision.norm_type == "layer_norm" and not vision.use_qk_norm
        # A norm that is applied to the output of the last block is not counted.
        known = known and (vision.use_mean_pooling or self._chosen != [-1])
        return replace(super().block, scaled=True, known=known)

    def _prepare(self, model: Any) -> None:
        super()._prepare(model)
        mask = model.model.vision_tower.embeddings.mask_token
        if mask is not None:  # Only masked image modelling uses it.
            mask.requires_grad_(False)

    def encode(
        self, encoder: torch.nn.Module, pixel_values: torch.Tensor, grids: Sequence[Grid]
    ) -> torch.Tensor:
        model: Any = encoder
        out = model.model.get_image_features(pixel_values=pixel_values, return_dict=True)
        rows: torch.Tensor = out.pooler_output
        return rows.flatten(0, 1)

    def _encoder_output(self, features: torch.Tensor) -> Any:
        # As one tile; the model reads the features of all of them in order.
        outputs: dict[str, Any] = {"pooler_output": features[None]}
        return BaseModelOutputWithPooling(**outputs)


def _block(tokenizer: Any) -> str:
    """A placeholder between the tokens that the processor puts around a visual."""
    names = ("start_image_token", "context_image_token", "end_image_token")
    return "".join(getattr(tokenizer, name) for name in names)
