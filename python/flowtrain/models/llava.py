"""LLaVA 1.5: every image is scaled and cropped to one tile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray
from transformers import AutoImageProcessor, PreTrainedTokenizerBase

from flowtrain.cost.flops import Grid, Side
from flowtrain.models.family import Vocabulary
from flowtrain.models.images import NO_LIMITS, PixelLimits, required
from flowtrain.models.tile_family import TileFamily
from flowtrain.models.tiles import TileProcessor

if TYPE_CHECKING:
    from PIL.Image import Image


class LlavaImageProcessor(TileProcessor):
    """A grid is (1, 1, 1).

    Args:
        folder: Hugging Face folder with the image processor.
        side: Height and width of the images that the tower takes, in pixels.
        tokens: Tokens of an image.
    """

    def __init__(self, folder: Path, *, side: int, tokens: int) -> None:
        self._processor: Any = AutoImageProcessor.from_pretrained(folder)
        self._tokens = tokens
        super().__init__(str(folder), side=side)

    def grid(self, height: int, width: int, *, num_images: int) -> Grid:
        return 1, 1, 1

    def num_tokens(self, grid: Grid) -> int:
        return self._tokens

    def _process(self, image: Image, *, num_images: int, **options: Any) -> NDArray[Any]:
        out: NDArray[Any] = self._processor(images=[image], return_tensors="np", **options)[
            "pixel_values"
        ]
        return out

    def read_inputs(self, inputs: Mapping[str, torch.Tensor]) -> tuple[list[Grid], torch.Tensor]:
        images = required(inputs, "pixel_values")
        return [(1, 1, 1)] * len(images), images


class Llava(TileFamily):
    """CLIP or SigLIP, two linear layers, and a Llama-like decoder."""

    def __init__(self, folder: Path, *, projector_side: Side) -> None:
        super().__init__(folder, projector_side=projector_side)
        drops_first = self.config.vision_feature_select_strategy == "default"
        self._tokens = self._tile_tokens - drops_first

    def vocabulary(self, tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
        token: Any = tokenizer.convert_ids_to_tokens(self.image_id)
        return Vocabulary(
            size=self.config.get_text_config().vocab_size,
            image_id=self.image_id,
            image_start_id=None,
            placeholders=(token,),
        )

    def image_processor(self, limits: PixelLimits = NO_LIMITS) -> LlavaImageProcessor:
        self._refuse(limits)
        return LlavaImageProcessor(self._folder, side=self._side, tokens=self._tokens)

    def encode(
        self, encoder: torch.nn.Module, pixel_values: torch.Tensor, grids: Sequence[Grid]
    ) -> torch.Tensor:
        model: Any = encoder
        out = model.model.get_image_features(pixel_values=pixel_values, return_dict=True)
        return torch.cat(list(out.pooler_output))
