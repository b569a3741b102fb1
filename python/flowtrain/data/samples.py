"""What a sample becomes: sizes for the planner, tokens for the backbone, pixels for the encoder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowtrain.config.schema import DataConfig
from flowtrain.data.conversation import Conversation, read_conversation
from flowtrain.data.errors import DataError
from flowtrain.data.images import read_upright, upright_size
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


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleText:
    """Tokens of a sample, each array of shape [num_tokens]."""

    input_ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    """Not shifted; -100 off target."""
    mm_token_type_ids: NDArray[np.int64]
    """0 for text, 1 for image tokens."""
    grids: tuple[Grid, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplePixels:
    """Patches of one image, shape [patches, patch_dim], and their grid."""

    pixels: NDArray[np.float32]
    grid: Grid
    skipped: bool
    """The file was damaged, and these are zeros."""


class SampleReader:
    """Reads samples of a data file for a model; one a thread or process.

    Args:
        model_folder: Hugging Face folder with tokenizer, chat template and image processor.
        data: The data file.
        max_tokens: Most tokens of a sample.
    """

    def __init__(self, model_folder: Path, data: DataConfig, max_tokens: int) -> None:
        from transformers import AutoConfig, AutoImageProcessor, AutoTokenizer

        self._file = JsonlFile(data.path)
        self._root = data.image_root or data.path.parent
        self._skip = data.bad_image == "skip"
        self._max_tokens = max_tokens
        # The processor's parts, not the processor: its video half would need torchvision.
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model_folder)
        self._images: Any = AutoImageProcessor.from_pretrained(model_folder)
        config = AutoConfig.from_pretrained(model_folder)
        self._image_token = str(self._tokenizer.convert_ids_to_tokens(config.image_token_id))
        self._image_token_id: int = config.image_token_id
        self.text = lru_cache(_RECENT)(self._text)

    def __len__(self) -> int:
        return len(self._file)

    def meta(self, line: int) -> SampleMeta:
        """Sizes of a sample.

        Raises:
            DataError: The sample cannot be read, or is longer than a microbatch.
        """
        text = self.text(line)
        num_tokens = len(text.input_ids)
        if num_tokens > self._max_tokens:
            raise DataError(
                f"{self._file.where(line)}: {num_tokens} tokens exceed "
                f"train.microbatch_tokens={self._max_tokens}; raise it, or drop the line"
            )
        return SampleMeta(
            index=line,
            num_tokens=num_tokens,
            num_targets=int((text.labels[1:] != -100).sum()),
            grids=text.grids,
            image_lengths=tuple(self._image_length(grid) for grid in text.grids),
        )

    def _text(self, line: int) -> SampleText:
        """Tokens of a sample: assistant turns with their end mark are its targets.

        Raises:
            DataError: The line, an image's header or the chat template cannot be used.
        """
        conversation = self._conversation(line)
        grids = tuple(self._grid(path, conversation.where) for path in conversation.images)
        full = self._render(conversation, len(conversation.messages), grids)
        spans = self._target_spans(conversation, full, grids)
        tokens = self._tokenizer(full, add_special_tokens=False, return_offsets_mapping=True)
        input_ids = np.array(tokens["input_ids"], dtype=np.int64)
        starts = np.array([start for start, _ in tokens["offset_mapping"]], dtype=np.int64)
        labels = np.full_like(input_ids, -100)
        for start, end in spans:
            inside = (starts >= start) & (starts < end)
            labels[inside] = input_ids[inside]
        return SampleText(
            input_ids=input_ids,
            labels=labels,
            mm_token_type_ids=(input_ids == self._image_token_id).astype(np.int64),
            grids=grids,
        )

    def pixels(self, line: int, image: int) -> SamplePixels:
        """Patches of one image of a sample.

        Raises:
            DataError: The file is missing or damaged, and `data.bad_image` is `error`.
        """
        conversation = self._conversation(line)
        path = conversation.images[image]
        try:
            picture = read_upright(path, conversation.where)
        except DataError:
            if not self._skip:
                raise
            grid = self._grid(path, conversation.where)
            patch_dim = 3 * self._images.temporal_patch_size * self._images.patch_size**2
            zeros = np.zeros((int(np.prod(grid)), patch_dim), dtype=np.float32)
            return SamplePixels(pixels=zeros, grid=grid, skipped=True)
        out = self._images(images=[picture], return_tensors="np")
        frames, rows, columns = out["image_grid_thw"][0].tolist()
        grid = (frames, rows, columns)
        return SamplePixels(pixels=out["pixel_values"], grid=grid, skipped=False)

    def _conversation(self, line: int) -> Conversation:
        return read_conversation(
            self._file.record(line), root=self._root, where=self._file.where(line)
        )

    def _grid(self, path: Path, where: str) -> Grid:
        """Grid of an image by the processor's own rule, from the header alone."""
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        height, width = upright_size(path, where)
        patch = self._images.patch_size
        if self._images.do_resize:
            try:
                height, width = smart_resize(
                    height,
                    width,
                    factor=patch * self._images.merge_size,
                    min_pixels=self._images.size["shortest_edge"],
                    max_pixels=self._images.size["longest_edge"],
                )
            except ValueError as error:
                raise DataError(f"{where}: image {path}: {error}; crop it") from error
        return 1, height // patch, width // patch

    def _image_length(self, grid: Grid) -> int:
        return int(np.prod(grid)) // int(self._images.merge_size) ** 2

    def _render(
        self, conversation: Conversation, turns: int, grids: tuple[Grid, ...], *, ask: bool = False
    ) -> str:
        """Text of the first turns, each image as often as it has tokens."""
        text: str = self._tokenizer.apply_chat_template(
            [message.for_template() for message in conversation.messages[:turns]],
            tokenize=False,
            add_generation_prompt=ask,
        )
        pieces = text.split(self._image_token)
        lengths = [self._image_length(grid) for grid in grids[: len(pieces) - 1]]
        repeated = [self._image_token * length for length in lengths]
        return "".join(piece + image for piece, image in zip(pieces, [*repeated, ""], strict=True))

    def _target_spans(
        self, conversation: Conversation, full: str, grids: tuple[Grid, ...]
    ) -> list[tuple[int, int]]:
        """Characters of the assistant's turns, each up to and with its end mark."""
        spans = []
        for number, message in enumerate(conversation.messages):
            if message.role != "assistant":
                continue
            before = self._render(conversation, number, grids, ask=True)
            after = self._render(conversation, number + 1, grids)
            if not (full.startswith(after) and after.startswith(before)):
                raise DataError(
                    f"{conversation.where}: the chat template renders turn {number + 1} "
                    "differently when more turns follow; its targets cannot be told"
                )
            end = after.rfind(self._tokenizer.eos_token, len(before))
            spans.append(
                (len(before), len(after) if end < 0 else end + len(self._tokenizer.eos_token))
            )
        if not spans:
            raise DataError(f"{conversation.where}: no assistant turn, so nothing to learn from")
        return spans
