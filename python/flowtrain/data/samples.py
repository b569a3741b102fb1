"""What a sample becomes: sizes for the planner, tokens for the backbone, pixels for the encoder."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flowtrain.config.schema import DataConfig
from flowtrain.cost.flops import Grid
from flowtrain.data.chat import ChatTokenizer, ChatTokens
from flowtrain.data.conversation import Conversation, read_conversation
from flowtrain.data.errors import DataError
from flowtrain.data.images import read_upright, unusable, upright_size
from flowtrain.data.jsonl import FileState, JsonlFile

# The planner asks for a sample's sizes a few steps before its tokens are wanted. They take 10 bytes
# each, an image is one, and what a sample takes besides is counted as 100 of them.
_RECENT_TOKENS = 1 << 22
_SAMPLE_TOKENS = 100


Fit = Literal["whole", "truncated", "dropped", "refused"]


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
    fit: Fit = "whole"
    """What `data.oversize` makes of the sample; the sizes are those after it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleText:
    """Tokens of a sample, each array of shape [num_tokens]."""

    input_ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    """Not shifted; -100 off target."""
    mm_token_type_ids: NDArray[np.int64]
    """0 for text, 1 for image tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplePixels:
    """Patches of one image on its planned grid, shape [patches, patch_dim]."""

    pixels: NDArray[np.float32]
    skipped: bool
    """The file cannot be used, or no longer has the planned grid, and these are zeros."""


def _check_patches(folder: Path, processor: Any, vision: Any) -> None:
    """Refuse an image processor whose patches are not those of the model.

    Raises:
        DataError: One of the sizes differs.
    """
    for ours, models in (
        ("patch_size", "patch_size"),
        ("temporal_patch_size", "temporal_patch_size"),
        ("merge_size", "spatial_merge_size"),
    ):
        size, needed = getattr(processor, ours), getattr(vision, models)
        if size != needed:
            raise DataError(
                f"{folder}: {ours}={size} of the image processor (preprocessor_config.json, or "
                f"processor_config.json) is not vision_config.{models}={needed} of config.json; "
                "restore the model's own files"
            )


class SampleReader:
    """Reads samples of a data file for a model; one a thread or process.

    `meta` reads the images' headers and so fixes the grids; `text` and `pixels` are given these
    and keep to them, whatever has become of the files.

    Args:
        model_folder: Hugging Face folder with tokenizer, chat template and image processor.
        data: The data file.
        max_tokens: Maximum tokens of a sample; `data.oversize` says what becomes of a longer one.
        state: State that the data file must have; as it is now if not given.

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
        from transformers import AutoConfig, AutoImageProcessor

        self._file = JsonlFile(data.path, state)
        self._root = data.image_root or data.path.parent
        self._skip = data.bad_image == "skip"
        self._oversize = data.oversize
        self._max_tokens = max_tokens
        # The processor's parts, not the processor: its video half would need torchvision.
        try:
            config = AutoConfig.from_pretrained(model_folder)
            self._chat = ChatTokenizer(model_folder, config)
            self._images: Any = AutoImageProcessor.from_pretrained(model_folder)
        except DataError:
            raise
        except (OSError, ValueError) as error:
            raise DataError(f"the model's folder {model_folder} cannot be read: {error}") from error
        _check_patches(model_folder, self._images, config.vision_config)
        self._image_start_id: int = config.vision_start_token_id
        self._recent: OrderedDict[int, tuple[tuple[Path, ...], ChatTokens]] = OrderedDict()
        self._recent_tokens = 0

    def __len__(self) -> int:
        return len(self._file)

    def meta(self, line: int) -> SampleMeta:
        """Sizes of a sample.

        Raises:
            DataError: As `sizes` and `check_length` do.
        """
        meta = self.sizes(line)
        self.check_length(meta)
        return meta

    def check_length(self, meta: SampleMeta) -> None:
        """Refuse a sample that is longer than a microbatch.

        Raises:
            DataError: It is, and `data.oversize` is `error`.
        """
        if meta.fit == "refused":
            raise DataError(
                f"{self._file.where(meta.index)}: {meta.num_tokens} tokens exceed "
                f"train.microbatch_tokens={self._max_tokens} ({sum(meta.image_lengths)} are of "
                "images); raise it, drop the line, or set data.oversize to drop or truncate"
            )

    def sizes(self, line: int) -> SampleMeta:
        """Sizes of a sample, also of one that `check_length` refuses.

        Raises:
            DataError: The line, an image's header or the chat template cannot be used.
        """
        images, tokens = self._line(line)
        where = self._file.where(line)
        grids = tuple(self._grid(path, where) for path in images)
        lengths = [self._image_length(grid) for grid in grids]
        is_whole = len(tokens.ids) - len(grids) + sum(lengths) <= self._max_tokens
        if self._oversize == "truncate":
            image_at = np.flatnonzero(tokens.is_image)
            ends = image_at - np.arange(len(grids)) + np.cumsum(lengths, dtype=np.int64)
            grids = grids[: np.searchsorted(ends, self._max_tokens, side="right")]
        text = self._expanded(tokens, grids)
        num_targets = int((text.labels[1:] != -100).sum())
        too_long: dict[str, Fit] = {
            "error": "refused",
            "drop": "dropped",
            "truncate": "truncated" if num_targets else "dropped",
        }
        return SampleMeta(
            index=line,
            num_tokens=len(text.input_ids),
            num_targets=num_targets,
            grids=grids,
            image_lengths=tuple(lengths[: len(grids)]),
            fit="whole" if is_whole else too_long[self._oversize],
        )

    def text(self, line: int, num_tokens: int, grids: Sequence[Grid]) -> SampleText:
        """Tokens of a sample, each image as often as it has tokens.

        Args:
            line: The sample.
            num_tokens: Its planned length; the sample is cut off there if `data.oversize` is
                `truncate`.
            grids: Planned grids of its images, without those that do not fit.

        Raises:
            DataError: The line or the chat template cannot be used, or the sample is no longer
                the planned one.
        """
        images, tokens = self._line(line)
        text = self._expanded(tokens, grids) if len(grids) <= len(images) else None
        if text is None or len(text.input_ids) != num_tokens:
            raise DataError(
                f"{self._file.where(line)}: it no longer has the {num_tokens} tokens "
                f"({len(grids)} images) that were planned: the data file or the model's folder "
                "changed during the run; restore it, and go on with --resume"
            )
        return text

    def _expanded(self, tokens: ChatTokens, grids: Sequence[Grid]) -> SampleText:
        """Tokens up to the first image without a grid, or to the limit where long ones are cut."""
        end = len(tokens.ids)
        image_at = np.flatnonzero(tokens.is_image)
        if len(grids) < len(image_at):
            end = int(image_at[len(grids)])
            if end and tokens.ids[end - 1] == self._image_start_id:
                end -= 1
        ids, is_image = tokens.ids[:end], tokens.is_image[:end]
        labels = np.where(tokens.is_target[:end], ids, -100)
        repeats = np.ones(len(ids), dtype=np.int64)
        repeats[is_image] = [self._image_length(grid) for grid in grids]
        limit = self._max_tokens if self._oversize == "truncate" else None
        return SampleText(
            input_ids=np.repeat(ids, repeats)[:limit],
            labels=np.repeat(labels, repeats)[:limit],
            mm_token_type_ids=np.repeat(is_image.astype(np.int64), repeats)[:limit],
        )

    def _line(self, line: int) -> tuple[tuple[Path, ...], ChatTokens]:
        """Images of a sample, and its tokens with one for each image."""
        if line in self._recent:
            self._recent.move_to_end(line)
            return self._recent[line]
        conversation = self._conversation(line)
        tokens = self._chat.tokens(conversation)
        self._recent[line] = conversation.images, tokens
        self._recent_tokens += len(tokens.ids) + _SAMPLE_TOKENS
        while self._recent_tokens > _RECENT_TOKENS and len(self._recent) > 1:
            _, (_, oldest) = self._recent.popitem(last=False)
            self._recent_tokens -= len(oldest.ids) + _SAMPLE_TOKENS
        return conversation.images, tokens

    def pixels(self, line: int, image: int, grid: Grid) -> SamplePixels:
        """Patches of one image of a sample.

        Args:
            line: The sample.
            image: Number of the image within the sample.
            grid: Its planned grid.

        Raises:
            DataError: The file cannot be used or no longer has the planned grid, and
                `data.bad_image` is `error`.
        """
        conversation = self._conversation(line)
        path, where = conversation.images[image], conversation.where
        try:
            pixels, found = self._processed(path, where)
            if found != grid:
                raise DataError(
                    f"{where}: image {path}: its grid is {found} and was planned as {grid}: the "
                    "file changed after it was planned; go on with --resume, or set "
                    "data.bad_image=skip"
                )
            return SamplePixels(pixels=pixels, skipped=False)
        except DataError:
            if not self._skip:
                raise
        patch_dim = 3 * self._images.temporal_patch_size * self._images.patch_size**2
        zeros = np.zeros((int(np.prod(grid)), patch_dim), dtype=np.float32)
        return SamplePixels(pixels=zeros, skipped=True)

    def _processed(self, path: Path, where: str) -> tuple[NDArray[np.float32], Grid]:
        """What the processor makes of an image: its patches and their grid."""
        picture = read_upright(path, where)
        try:
            out = self._images(images=[picture], return_tensors="np")
        except ValueError as error:
            raise unusable(path, where, error) from error
        frames, rows, columns = out["image_grid_thw"][0].tolist()
        return out["pixel_values"], (frames, rows, columns)

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
