"""Samples of a data set for one model: sizes and tokens for the planner, pixels for encoders."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from flowtrain.config.schema import DataConfig
from flowtrain.cost.flops import Grid
from flowtrain.data.chat import ChatTokenizer, ChatTokens
from flowtrain.data.conversation import Conversation, read_conversation
from flowtrain.data.errors import DataError
from flowtrain.data.pixels import ImageReader, SamplePixels
from flowtrain.data.records import State, open_records
from flowtrain.data.text import (
    CompactText,
    before_last_answer,
    compact,
    images_within,
    num_targets,
    num_tokens,
    truncate,
)
from flowtrain.models.errors import ModelError

Fit = Literal["whole", "truncated", "dropped", "refused"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleMeta:
    """Sizes of a sample, from its text and the headers of its images."""

    index: int
    num_tokens: int
    num_targets: int
    """Target tokens, without the first token of the sample, which nothing predicts."""
    grids: tuple[Grid, ...]
    """Grid of each image."""
    image_lengths: tuple[int, ...]
    """Tokens of each image."""
    fit: Fit = "whole"
    """Effect of `data.oversize` on the sample; the sizes are those after it."""


class SampleReader:
    """Reads samples of a data set for a model. Each thread or process has its own.

    `meta` and `meta_and_text` read the headers of images, which fixes their grids. `text` and
    `pixels` take these grids and keep to them, even if the files have changed.

    Args:
        model_folder: Hugging Face folder with tokenizer, chat template and image processor.
        data: The data set.
        max_tokens: Maximum tokens of a sample; `data.oversize` says what to do with longer ones.
        state: State that the data set must have; None takes its state now.

    Attributes:
        held_out: Reader of the samples of evaluations, if there are any.

    Raises:
        DataError: The data set or the model's folder cannot be used.
    """

    def __init__(
        self,
        model_folder: Path,
        data: DataConfig,
        max_tokens: int,
        state: State | None = None,
    ) -> None:
        from flowtrain.models.images import PixelLimits
        from flowtrain.models.registry import family_for  # Imports torch.

        self._records = open_records(data, state)
        self._root = data.root
        self._oversize = data.oversize
        self._max_tokens = max_tokens
        try:
            family = family_for(model_folder)
            self._chat = ChatTokenizer(model_folder, family)
            limits = PixelLimits(min_pixels=data.min_pixels, max_pixels=data.max_pixels)
            processor = family.image_processor(limits)
        except DataError:
            raise
        except ModelError as error:
            raise DataError(str(error)) from error
        except (OSError, ValueError) as error:
            raise DataError(f"the model's folder {model_folder} cannot be read: {error}") from error
        self._images = ImageReader(processor, skip_bad=data.bad_image == "skip")
        self.held_out: SampleReader | None = None

    def of(self, data: DataConfig, state: State | None = None) -> SampleReader:
        """A reader of another data set, which shares this one's tokenizer and image processor.

        Args:
            data: The data set; other fields than its source are those of this reader.
            state: State that the data set must have; None takes its state now.

        Raises:
            DataError: The data set cannot be used.
        """
        other = copy.copy(self)
        other._records = open_records(data, state)
        other._root = data.root
        return other

    def __len__(self) -> int:
        return len(self._records)

    def meta(self, sample: int) -> SampleMeta:
        """Sizes of a sample.

        Raises:
            DataError: As `sizes_and_text` and `check_length` do.
        """
        return self.meta_and_text(sample)[0]

    def meta_and_text(self, sample: int) -> tuple[SampleMeta, CompactText]:
        """Sizes of a sample, and its tokens after `data.oversize`.

        Raises:
            DataError: As `sizes_and_text` and `check_length` do.
        """
        meta, text = self.sizes_and_text(sample)
        self.check_length(meta)
        return meta, text

    def prompt(self, sample: int) -> tuple[SampleMeta, CompactText]:
        """Sizes and tokens of a sample up to its last answer, as `meta_and_text` has the whole."""
        meta, text = self.meta_and_text(sample)
        text = before_last_answer(text)
        images = int(text["is_image"].sum())
        before = replace(
            meta,
            num_tokens=num_tokens(text),
            num_targets=num_targets(text),
            grids=meta.grids[:images],
            image_lengths=meta.image_lengths[:images],
        )
        return before, text

    def answer(self, sample: int, ids: Sequence[int]) -> dict[str, str]:
        """A generated answer as text, with what stands in front of it and the sample's own.

        Args:
            sample: Number of the sample.
            ids: Token ids of the answer.
        """
        _, text = self.meta_and_text(sample)
        prompt = before_last_answer(text)
        own = text[len(prompt) :]
        return {
            "prompt": self._chat.decode(prompt["id"].tolist()),
            "expected": self._chat.decode(own["id"][own["is_target"]].tolist()),
            "answer": self._chat.decode(ids),
        }

    def check_length(self, meta: SampleMeta) -> None:
        """Refuse a sample that is longer than a microbatch.

        Raises:
            DataError: The sample is too long, and `data.oversize` is `error`.
        """
        if meta.fit == "refused":
            raise DataError(
                f"{self._records.where(meta.index)}: {meta.num_tokens} tokens exceed "
                f"train.microbatch_tokens={self._max_tokens} ({sum(meta.image_lengths)} of them in "
                "images); raise it, drop the line, or set data.oversize to drop or truncate"
            )

    def ends(self, text: CompactText) -> bool:
        """Whether the last target of a sample ends the answer, so that the model learns to."""
        targets = text["id"][text["is_target"]]
        return len(targets) > 0 and int(targets[-1]) in self._chat.end_ids

    def sizes_and_text(self, sample: int) -> tuple[SampleMeta, CompactText]:
        """As `meta_and_text`, also of a sample that `check_length` refuses.

        Raises:
            DataError: The record, an image's header or the chat template cannot be used.
        """
        conversation = self._conversation(sample)
        tokens = self._chat.tokens(conversation)
        grids = self._images.grids(conversation)
        lengths = [self._images.num_tokens(grid) for grid in grids]
        is_whole = len(tokens.ids) - len(grids) + sum(lengths) <= self._max_tokens
        if self._oversize == "truncate":
            grids = grids[: images_within(tokens, lengths, self._max_tokens)]
        text = self._compact(tokens, grids)
        targets = num_targets(text)
        too_long: dict[str, Fit] = {
            "error": "refused",
            "drop": "dropped",
            "truncate": "truncated" if targets else "dropped",
        }
        meta = SampleMeta(
            index=sample,
            num_tokens=num_tokens(text),
            num_targets=targets,
            grids=grids,
            image_lengths=tuple(lengths[: len(grids)]),
            fit="whole" if is_whole else too_long[self._oversize],
        )
        return meta, text

    def text(self, sample: int, grids: Sequence[Grid]) -> CompactText:
        """Tokens of a sample after `data.oversize`, without reading its images.

        Args:
            sample: Number of the sample.
            grids: Planned grids of its images, without images that do not fit.

        Raises:
            DataError: The record or the chat template cannot be used.
        """
        return self._compact(self._chat.tokens(self._conversation(sample)), grids)

    def pixels(self, sample: int, image: int, grid: Grid) -> SamplePixels:
        """Pixels of one image of a sample.

        Args:
            sample: Number of the sample.
            image: Number of the image within the sample.
            grid: Its planned grid.

        Raises:
            DataError: The file cannot be used or no longer has the planned grid, and
                `data.bad_image` is `error`.
        """
        conversation = self._conversation(sample)
        return self._images.pixels(conversation, image, grid)

    def _compact(self, tokens: ChatTokens, grids: Sequence[Grid]) -> CompactText:
        lengths = [self._images.num_tokens(grid) for grid in grids]
        text = compact(tokens, lengths, image_start_id=self._chat.image_start_id)
        return truncate(text, self._max_tokens) if self._oversize == "truncate" else text

    def _conversation(self, sample: int) -> Conversation:
        return read_conversation(
            self._records.record(sample), root=self._root, where=self._records.where(sample)
        )
