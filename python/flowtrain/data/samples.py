"""Samples of a data file for one model: sizes for the planner, tokens and pixels for the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flowtrain.config.schema import DataConfig
from flowtrain.cost.flops import Grid
from flowtrain.data.chat import ChatTokenizer, ChatTokens
from flowtrain.data.conversation import Conversation, read_conversation
from flowtrain.data.errors import DataError
from flowtrain.data.jsonl import FileState, JsonlFile
from flowtrain.data.pixels import ImageReader, SamplePixels
from flowtrain.data.text import SampleText, expand, images_within, truncate
from flowtrain.data.token_cache import TokenCache, TokenizedSample
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
    """Frames, height and width of each image in patches."""
    image_lengths: tuple[int, ...]
    """Tokens of each image."""
    fit: Fit = "whole"
    """Effect of `data.oversize` on the sample; the sizes are those after it."""


class SampleReader:
    """Reads samples of a data file for a model. Each thread or process has its own.

    `meta` reads the headers of images, which fixes their grids. `text` and `pixels` take these
    grids and keep to them, even if the files have changed.

    Args:
        model_folder: Hugging Face folder with tokenizer, chat template and image processor.
        data: The data file.
        max_tokens: Maximum tokens of a sample; `data.oversize` says what to do with longer ones.
        state: State that the data file must have; None takes its state now.

    Raises:
        DataError: The data file or the model's folder cannot be used.
    """

    def __init__(
        self,
        model_folder: Path,
        data: DataConfig,
        max_tokens: int,
        state: FileState | None = None,
    ) -> None:
        from flowtrain.models.registry import adapter_for  # Imports torch.

        self._file = JsonlFile(data.path, state)
        self._root = data.image_root or data.path.parent
        self._oversize = data.oversize
        self._max_tokens = max_tokens
        try:
            adapter = adapter_for(model_folder)
            self._chat = ChatTokenizer(model_folder, adapter.vocabulary)
            processor = adapter.image_processor()
        except DataError:
            raise
        except ModelError as error:
            raise DataError(str(error)) from error
        except (OSError, ValueError) as error:
            raise DataError(f"the model's folder {model_folder} cannot be read: {error}") from error
        self._images = ImageReader(processor, skip_bad=data.bad_image == "skip")
        self._image_start_id = adapter.vocabulary.image_start_id
        self._tokens = TokenCache(self._tokenized)

    def __len__(self) -> int:
        return len(self._file)

    def meta(self, sample: int) -> SampleMeta:
        """Sizes of a sample.

        Raises:
            DataError: As `sizes` and `check_length` do.
        """
        meta = self.sizes(sample)
        self.check_length(meta)
        return meta

    def check_length(self, meta: SampleMeta) -> None:
        """Refuse a sample that is longer than a microbatch.

        Raises:
            DataError: The sample is too long, and `data.oversize` is `error`.
        """
        if meta.fit == "refused":
            raise DataError(
                f"{self._file.where(meta.index)}: {meta.num_tokens} tokens exceed "
                f"train.microbatch_tokens={self._max_tokens} ({sum(meta.image_lengths)} of them in "
                "images); raise it, drop the line, or set data.oversize to drop or truncate"
            )

    def sizes(self, sample: int) -> SampleMeta:
        """Sizes of a sample, also of one that `check_length` refuses.

        Raises:
            DataError: The line, an image's header or the chat template cannot be used.
        """
        images, tokens = self._tokens.get(sample)
        where = self._file.where(sample)
        grids = tuple(self._images.grid(path, where) for path in images)
        lengths = [self._images.num_tokens(grid) for grid in grids]
        is_whole = len(tokens.ids) - len(grids) + sum(lengths) <= self._max_tokens
        if self._oversize == "truncate":
            grids = grids[: images_within(tokens, lengths, self._max_tokens)]
        text = self._expanded(tokens, grids)
        too_long: dict[str, Fit] = {
            "error": "refused",
            "drop": "dropped",
            "truncate": "truncated" if text.num_targets else "dropped",
        }
        return SampleMeta(
            index=sample,
            num_tokens=len(text.input_ids),
            num_targets=text.num_targets,
            grids=grids,
            image_lengths=tuple(lengths[: len(grids)]),
            fit="whole" if is_whole else too_long[self._oversize],
        )

    def text(self, sample: int, num_tokens: int, grids: Sequence[Grid]) -> SampleText:
        """Tokens of a sample, with all tokens of each image.

        Args:
            sample: Number of the sample.
            num_tokens: Its planned length. A sample that `data.oversize` truncates ends there.
            grids: Planned grids of its images, without images that do not fit.

        Raises:
            DataError: The line or the chat template cannot be used, or the sample no longer has
                its planned length.
        """
        images, tokens = self._tokens.get(sample)
        text = self._expanded(tokens, grids) if len(grids) <= len(images) else None
        if text is None or len(text.input_ids) != num_tokens:
            raise DataError(
                f"{self._file.where(sample)}: it no longer has the {num_tokens} tokens "
                f"({len(grids)} images) that were planned: the data file or the model's folder "
                "changed during the run; restore it and continue with --resume"
            )
        return text

    def pixels(self, sample: int, image: int, grid: Grid) -> SamplePixels:
        """Patches of one image of a sample.

        Args:
            sample: Number of the sample.
            image: Number of the image within the sample.
            grid: Its planned grid.

        Raises:
            DataError: The file cannot be used or no longer has the planned grid, and
                `data.bad_image` is `error`.
        """
        conversation = self._conversation(sample)
        return self._images.pixels(conversation.images[image], conversation.where, grid)

    def _expanded(self, tokens: ChatTokens, grids: Sequence[Grid]) -> SampleText:
        lengths = [self._images.num_tokens(grid) for grid in grids]
        text = expand(tokens, lengths, image_start_id=self._image_start_id)
        return truncate(text, self._max_tokens) if self._oversize == "truncate" else text

    def _tokenized(self, sample: int) -> TokenizedSample:
        conversation = self._conversation(sample)
        return conversation.images, self._chat.tokens(conversation)

    def _conversation(self, sample: int) -> Conversation:
        return read_conversation(
            self._file.record(sample), root=self._root, where=self._file.where(sample)
        )
