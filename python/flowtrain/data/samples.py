"""What a sample becomes: sizes for the planner, tokens for the backbone, pixels for the encoder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flowtrain.config.schema import DataConfig
from flowtrain.data.chat import ChatTokenizer
from flowtrain.data.conversation import Conversation, read_conversation
from flowtrain.data.errors import DataError
from flowtrain.data.images import read_upright, unusable, upright_size
from flowtrain.data.jsonl import JsonlFile

Grid = tuple[int, int, int]

# The planner asks for a sample's sizes a few steps before its tokens are wanted.
_RECENT = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleMeta:
    """Sizes of a sample, from its text and the headers of its images."""

    index: int
    num_tokens: int
    num_targets: int
    """Labels that count: a label on the first token has nothing to be predicted from."""
    grids: tuple[Grid, ...]
    """Temporal, height and width of each image in patches."""
    image_lengths: tuple[int, ...]
    """Tokens of each image."""
    fit: Literal["whole", "truncated", "dropped"] = "whole"
    """What `data.oversize` makes of the sample; the sizes are those after it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleText:
    """Tokens of a sample, each array of shape [num_tokens]."""

    input_ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    """Not shifted; -100 off target."""
    mm_token_type_ids: NDArray[np.int64]
    """0 for text, 1 for image tokens."""
    grids: tuple[Grid, ...]
    truncated: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplePixels:
    """Patches of one image, shape [patches, patch_dim], and their grid."""

    pixels: NDArray[np.float32]
    grid: Grid
    skipped: bool
    """The file cannot be used, and these are zeros."""


class SampleReader:
    """Reads samples of a data file for a model; one a thread or process.

    Args:
        model_folder: Hugging Face folder with tokenizer, chat template and image processor.
        data: The data file.
        max_tokens: Maximum tokens of a sample; `data.oversize` says what becomes of a longer one.
    """

    def __init__(self, model_folder: Path, data: DataConfig, max_tokens: int) -> None:
        from transformers import AutoConfig, AutoImageProcessor

        self._file = JsonlFile(data.path)
        self._root = data.image_root or data.path.parent
        self._skip = data.bad_image == "skip"
        self._oversize = data.oversize
        self._max_tokens = max_tokens
        # The processor's parts, not the processor: its video half would need torchvision.
        config = AutoConfig.from_pretrained(model_folder)
        self._chat = ChatTokenizer(model_folder, config)
        self._images: Any = AutoImageProcessor.from_pretrained(model_folder)
        self._image_start_id: int = config.vision_start_token_id
        self.text = lru_cache(_RECENT)(self._fitting_text)

    def __len__(self) -> int:
        return len(self._file)

    def meta(self, line: int) -> SampleMeta:
        """Sizes of a sample.

        Raises:
            DataError: The sample cannot be read, or is longer than a microbatch and
                `data.oversize` is `error`.
        """
        text = self.text(line)
        num_tokens = len(text.input_ids)
        num_targets = int((text.labels[1:] != -100).sum())
        image_lengths = tuple(self._image_length(grid) for grid in text.grids)
        fit: Literal["whole", "truncated", "dropped"] = "whole"
        if num_tokens > self._max_tokens:
            if self._oversize == "error":
                raise DataError(
                    f"{self._file.where(line)}: {num_tokens} tokens exceed "
                    f"train.microbatch_tokens={self._max_tokens} ({sum(image_lengths)} are of "
                    "images); raise it, drop the line, or set data.oversize to drop or truncate"
                )
            fit = "dropped"
        elif text.truncated:
            fit = "truncated" if num_targets else "dropped"
        return SampleMeta(
            index=line,
            num_tokens=num_tokens,
            num_targets=num_targets,
            grids=text.grids,
            image_lengths=image_lengths,
            fit=fit,
        )

    def _fitting_text(self, line: int) -> SampleText:
        """Tokens of a sample, cut off at the end where `data.oversize` is `truncate`."""
        text = self._text(line)
        if self._oversize != "truncate" or len(text.input_ids) <= self._max_tokens:
            return text
        end = self._max_tokens
        image_at = np.flatnonzero(text.mm_token_type_ids)
        # Images before the cut, and the first token of the one that it would go through.
        ends = np.cumsum([self._image_length(grid) for grid in text.grids], dtype=np.int64)
        num_images = int(np.searchsorted(ends, np.searchsorted(image_at, end), side="right"))
        if num_images < len(ends):
            start = int(image_at[ends[num_images - 1] if num_images else 0])
            if start and text.input_ids[start - 1] == self._image_start_id:
                start -= 1
            end = min(end, start)
        return replace(
            text,
            input_ids=text.input_ids[:end],
            labels=text.labels[:end],
            mm_token_type_ids=text.mm_token_type_ids[:end],
            grids=text.grids[:num_images],
            truncated=True,
        )

    def _text(self, line: int) -> SampleText:
        """Tokens of a sample, each image as often as it has tokens.

        Raises:
            DataError: The line, an image's header or the chat template cannot be used.
        """
        conversation = self._conversation(line)
        grids = tuple(self._grid(path, conversation.where) for path in conversation.images)
        tokens = self._chat.tokens(conversation)
        repeats = np.ones_like(tokens.ids)
        repeats[tokens.is_image] = [self._image_length(grid) for grid in grids]
        return SampleText(
            input_ids=np.repeat(tokens.ids, repeats),
            labels=np.repeat(np.where(tokens.is_target, tokens.ids, -100), repeats),
            mm_token_type_ids=np.repeat(tokens.is_image.astype(np.int64), repeats),
            grids=grids,
        )

    def pixels(self, line: int, image: int) -> SamplePixels:
        """Patches of one image of a sample.

        Raises:
            DataError: The file cannot be used, and `data.bad_image` is `error`.
        """
        conversation = self._conversation(line)
        path, where = conversation.images[image], conversation.where
        try:
            return self._processed(path, where)
        except DataError:
            if not self._skip:
                raise
        grid = self._grid(path, where)
        patch_dim = 3 * self._images.temporal_patch_size * self._images.patch_size**2
        zeros = np.zeros((int(np.prod(grid)), patch_dim), dtype=np.float32)
        return SamplePixels(pixels=zeros, grid=grid, skipped=True)

    def _processed(self, path: Path, where: str) -> SamplePixels:
        """What the processor makes of an image."""
        picture = read_upright(path, where)
        try:
            out = self._images(images=[picture], return_tensors="np")
        except ValueError as error:
            raise unusable(path, where, error) from error
        frames, rows, columns = out["image_grid_thw"][0].tolist()
        return SamplePixels(pixels=out["pixel_values"], grid=(frames, rows, columns), skipped=False)

    def _conversation(self, line: int) -> Conversation:
        return read_conversation(
            self._file.record(line), root=self._root, where=self._file.where(line)
        )

    def _grid(self, path: Path, where: str) -> Grid:
        """Planned grid of an image: with `data.bad_image=skip` the smallest where it has none.

        Raises:
            DataError: The header cannot be used, and `data.bad_image` is `error`.
        """
        try:
            return self._header_grid(path, where)
        except DataError:
            if not self._skip:
                raise
        side = self._images.patch_size * self._images.merge_size
        return self._resized_grid(side, side)

    def _header_grid(self, path: Path, where: str) -> Grid:
        height, width = upright_size(path, where)
        try:
            return self._resized_grid(height, width)
        except ValueError as error:
            raise unusable(path, where, error) from error

    def _resized_grid(self, height: int, width: int) -> Grid:
        """Grid of an image of this size in pixels, by the processor's own rule."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        if self._images.do_resize:
            height, width = smart_resize(
                height,
                width,
                factor=self._images.patch_size * self._images.merge_size,
                min_pixels=self._images.size["shortest_edge"],
                max_pixels=self._images.size["longest_edge"],
            )
        return 1, height // self._images.patch_size, width // self._images.patch_size

    def _image_length(self, grid: Grid) -> int:
        return int(np.prod(grid)) // int(self._images.merge_size) ** 2
