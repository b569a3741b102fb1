"""LLaVA-OneVision: the only image of a sample is cut into tiles; each of several is one tile."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence
from torch.overrides import TorchFunctionMode
from transformers import AutoImageProcessor, AutoTokenizer, PreTrainedTokenizerBase
from transformers.image_processing_utils import select_best_resolution
from transformers.video_utils import VideoMetadata

from flowtrain.cost.flops import Grid, Side
from flowtrain.models.errors import ModelError
from flowtrain.models.family import Vocabulary
from flowtrain.models.huggingface import without_bypass
from flowtrain.models.images import NO_LIMITS, PixelLimits, required
from flowtrain.models.packed_batch import PackedBatch
from flowtrain.models.tile_family import TileFamily
from flowtrain.models.tile_videos import TileVideoProcessor
from flowtrain.models.tiles import TileProcessor
from flowtrain.models.video_processor import VideoProcessor
from flowtrain.models.videos import NO_VIDEO_LIMITS, VideoLimits

if TYPE_CHECKING:
    from PIL.Image import Image


class LlavaOnevisionImageProcessor(TileProcessor):
    """A grid is (tiles, height and width of the image in pixels).

    A single image has one tile for the whole image and at least one more for its parts. An image of
    a sample with several has one tile.

    Args:
        folder: Hugging Face folder with the image processor.
        config: Configuration of the model.
        side: Height and width of a tile in pixels.

    Raises:
        ModelError: Tiles, or resolutions to choose from, are not those of the model.
    """

    def __init__(self, folder: Path, config: Any, *, side: int) -> None:
        self._processor: Any = AutoImageProcessor.from_pretrained(folder)
        self._resolutions = [tuple(pair) for pair in config.image_grid_pinpoints]
        found = [tuple(pair) for pair in self._processor.image_grid_pinpoints]
        if found != self._resolutions:
            raise ModelError(
                f"{folder}: image_grid_pinpoints of the image processor (preprocessor_config.json) "
                "are not those of config.json; restore the model's own files"
            )
        self._max_tiles = int(config.vision_aspect_ratio.removeprefix("anyres_max_"))
        self._patches = side // config.vision_config.patch_size
        super().__init__(str(folder), side=side)

    def grid(self, height: int, width: int, *, num_images: int) -> Grid:
        if num_images > 1:
            return 1, height, width
        rows, columns = self._tiling(height, width)
        return 1 + rows * columns, height, width

    def num_tokens(self, grid: Grid) -> int:
        tiles, height, width = grid
        whole = self._patches**2
        if tiles == 1:
            return whole + 1  # A token that ends the line.
        rows, columns = self._unpadded(height, width)
        return whole + rows * (columns + 1)

    def _tiling(self, height: int, width: int) -> tuple[int, int]:
        best = select_best_resolution((height, width), self._resolutions)
        return best[0] // self._side, best[1] // self._side

    def _unpadded(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tokens of an image that is cut into tiles.

        Source: `pack_image_features` and `unpad_image` of transformers.
        """
        tile_rows, tile_columns = self._tiling(height, width)
        rows, columns = tile_rows * self._patches, tile_columns * self._patches
        if width / height > columns / rows:
            kept = int(round(height * (columns / width), 7))
            rows -= (rows - kept) // 2 * 2
        else:
            kept = int(round(width * (rows / height), 7))
            columns -= (columns - kept) // 2 * 2
        ratio = math.sqrt(rows * columns / (self._max_tiles * self._patches**2))
        if ratio > 1.1:
            return int(rows // ratio), int(columns // ratio)
        return rows, columns

    def _process(self, image: Image, *, num_images: int, **options: Any) -> NDArray[Any]:
        from PIL.Image import new

        # The processor cuts an image into tiles if it is the only one of its sample.
        others = [new("RGB", (1, 1))] if num_images > 1 else []
        out = self._processor(images=[[image, *others]], **options)["pixel_values"]
        return np.asarray(out[0])

    def read_inputs(self, inputs: Mapping[str, torch.Tensor]) -> tuple[list[Grid], torch.Tensor]:
        sizes: Any = required(inputs, "image_sizes").tolist()
        grids = [self.grid(height, width, num_images=len(sizes)) for height, width in sizes]
        pixels = required(inputs, "pixel_values")
        if pixels.ndim != 5 or len(pixels) != len(grids):
            raise ModelError(
                f"pixel_values: shape {tuple(pixels.shape)}, but image_sizes has {len(grids)} "
                "images, each of which has tiles of 3 colours, height and width; pass on all that "
                "the model's processor returns"
            )
        # The processor pads images to the same number of tiles.
        tiles = [image[: grid[0]] for image, grid in zip(pixels, grids, strict=True)]
        return grids, torch.cat(tiles)

    def sample_inputs(self, grids: Sequence[Grid], pixels: torch.Tensor) -> dict[str, torch.Tensor]:
        # The processor pads images to the same number of tiles.
        padded = pad_sequence(pixels.split([tiles for tiles, _, _ in grids]), batch_first=True)
        return self.model_inputs([grids], pixels) | {"pixel_values": padded}

    def model_inputs(
        self, grids: Sequence[Sequence[Grid]], pixels: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        return {
            "pixel_values": pixels,
            "image_sizes": torch.tensor([size for _, *size in chain(*grids)]),
            # By which the model tells documents whose only image has tiles.
            "batch_num_images": torch.tensor([len(images) for images in grids]),
        }


class LlavaOnevisionVideoProcessor(TileVideoProcessor):
    """A grid is (frames, 0, 0): frames are pooled, and a token ends the video.

    Args:
        folder: Hugging Face folder with the video processor.
        limits: Take the place of the processor's own.
        side: Height and width of a tile in pixels.
        patches: Rows and columns of a tile in patches.
        placeholder: The token that stands for the tokens of a video.
    """

    def __init__(
        self, folder: Path, limits: VideoLimits, *, side: int, patches: int, placeholder: str
    ) -> None:
        kind = "llava_onevision.video_processing_llava_onevision:LlavaOnevisionVideoProcessor"
        super().__init__(folder, kind, limits, side=side)
        self._frame_tokens = math.ceil(patches / 2) ** 2
        self._placeholder = placeholder

    def num_tokens(self, grid: Grid) -> int:
        return grid[0] * self._frame_tokens + 1

    def read_inputs(
        self, inputs: Mapping[str, torch.Tensor]
    ) -> tuple[list[Grid], list[float], torch.Tensor]:
        videos = required(inputs, "pixel_values_videos")
        return [(videos.shape[1], 0, 0)] * len(videos), [1.0] * len(videos), videos.flatten(0, 1)

    def model_inputs(self, grids: Sequence[Grid], pixels: torch.Tensor) -> dict[str, torch.Tensor]:
        if len(numbers := {frames for frames, _, _ in grids}) > 1:
            raise ModelError(
                f"pixel_values_videos: a row has videos of {sorted(numbers)} frames, and the model "
                "takes only videos of one number of frames together; process all videos with the "
                "same num_frames"
            )
        return {"pixel_values_videos": pixels.unflatten(0, (len(grids), -1))}

    def _grid_of_frames(self, frames: int) -> Grid:
        return frames, 0, 0

    def _text(self, metadata: VideoMetadata, grid: Grid) -> str:
        return self._placeholder


class LlavaOnevision(TileFamily):
    """SigLIP, two linear layers, tokens that end lines of patches, and a Qwen-like decoder."""

    image_modules = ("vision_tower", "multi_modal_projector", "image_newline")
    projector_modules = ("multi_modal_projector", "image_newline")

    def __init__(self, folder: Path, *, projector_side: Side) -> None:
        super().__init__(folder, projector_side=projector_side)
        self.video_id = self.config.video_token_id
        self._tokens = self._patches

    def vocabulary(self, tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
        ids = [self.image_id, self.config.video_token_id]
        placeholders: Any = tokenizer.convert_ids_to_tokens(ids)
        return Vocabulary(
            size=self.config.get_text_config().vocab_size,
            image_id=self.image_id,
            image_start_id=None,
            placeholders=tuple(placeholders),
            video_mark=placeholders[1],
        )

    def video_processor(self, limits: VideoLimits = NO_VIDEO_LIMITS) -> VideoProcessor:
        tokenizer: Any = AutoTokenizer.from_pretrained(self._folder)
        return LlavaOnevisionVideoProcessor(
            self._folder,
            limits,
            side=self._side,
            patches=math.isqrt(self._patches),
            placeholder=tokenizer.convert_ids_to_tokens(self.config.video_token_id),
        )

    def image_processor(self, limits: PixelLimits = NO_LIMITS) -> LlavaOnevisionImageProcessor:
        self._refuse(limits)
        return LlavaOnevisionImageProcessor(self._folder, self.config, side=self._side)

    def image_rows(self, grid: Grid, num_tokens: int) -> int:
        # The projector is followed by a scaling of its features, which is no map of single rows.
        return num_tokens if self.projector_side == "encoder" else grid[0] * self._patches

    def _rows_of(self, batch: PackedBatch) -> int:
        if self.projector_side == "encoder":
            return len(batch.visual)
        return sum(tiles for tiles, _, _ in batch.grids) * self._patches

    def encode(
        self, encoder: torch.nn.Module, pixel_values: torch.Tensor, grids: Sequence[Grid]
    ) -> torch.Tensor:
        root: Any = encoder
        model = root.model
        # The steps of get_image_features, which takes either single images or those of samples with
        # several, and not both in one call.
        tower = model.vision_tower(
            pixel_values, return_dict=True, output_hidden_states=self.config.vision_feature_layer
        )
        features = torch.cat([tower.hidden_states[layer] for layer in self._chosen], dim=-1)
        if self.config.vision_feature_select_strategy == "default":
            features = features[:, 1:]
        rows = features.flatten(0, 1)
        return rows if self.projector_side == "backbone" else self._project(model, rows, grids)

    def _project(self, model: Any, rows: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        projected = without_bypass(
            model.multi_modal_projector, rows.unflatten(0, (-1, self._patches))
        )
        visuals = list(zip(projected.split([tiles for tiles, _, _ in grids]), grids, strict=True))
        images = [(tiles, size) for tiles, (_, *size) in visuals if any(size)]
        packed: list[torch.Tensor] = []
        if images:
            with _WithoutCopies():
                packed, _ = model.pack_image_features(
                    [tiles for tiles, _ in images],
                    [size for _, size in images],
                    image_newline=model.image_newline,
                    vision_aspect_ratio=self.config.vision_aspect_ratio,
                )
        of_images = iter(packed)
        return torch.cat(
            [
                next(of_images) if any(size) else _pooled(model, tiles)
                for tiles, (_, *size) in visuals
            ]
        )


class _WithoutCopies(TorchFunctionMode):
    """Makes no tensors of numbers on the host: their copies would make it wait for the device.

    transformers returns lengths of features as such a tensor, which nothing reads here.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return None if function is torch.tensor else function(*args, **(kwargs or {}))


def _pooled(model: Any, frames: torch.Tensor) -> torch.Tensor:
    """Features of a video, as `get_video_features` makes them of those of its frames."""
    return torch.cat([model.apply_pooling(frames).flatten(0, 1), model.image_newline[None]])
