"""Samples of a data set for one model: sizes and tokens for the planner, pixels for encoders."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from flowtrain.config.data import DataConfig
from flowtrain.cost.flops import Grid
from flowtrain.data.chat import ChatTokenizer
from flowtrain.data.conversation import Conversation, read_conversation
from flowtrain.data.errors import DataError
from flowtrain.data.files import IMAGE
from flowtrain.data.images import becomes_blank
from flowtrain.data.pixel_maker import SamplePixels, StoredRows
from flowtrain.data.pixels import PlannedVisual, VisualReader
from flowtrain.data.records import Dataset, State
from flowtrain.data.sample_meta import SampleMeta, SizeLimit
from flowtrain.data.text import (
    CompactText,
    before_last_answer,
    num_targets,
    num_tokens,
)
from flowtrain.models.errors import ModelError

if TYPE_CHECKING:
    from flowtrain.data.processed import ProcessedSample

# Samples of which one stage is done before the next stage.
_STAGED = 16


class SampleReader:
    """Reads samples of a data set for a model. Each thread or process has its own.

    `meta` and `meta_and_text` read the headers of images and videos, which fixes their grids.
    `text` and `pixels` take these grids and keep to them, even if the files have changed.

    Args:
        model_folder: Hugging Face folder with tokenizer, chat template and image processor.
        data: The data set.
        max_tokens: Maximum tokens of a sample; `data.oversize` says what to do with longer ones.
        state: State that the data set must have; None takes its state now.
        spool: Folder with the records of a stream, as `Dataset`.

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
        spool: Path | None = None,
    ) -> None:
        from flowtrain.data.processed import ProcessorOutputs  # Imports torch.
        from flowtrain.models.folder import check_files
        from flowtrain.models.images import PixelLimits
        from flowtrain.models.registry import family_for
        from flowtrain.models.videos import VideoLimits

        self._dataset = Dataset(data, state, spool)
        self._ignore = frozenset(data.ignore)
        try:
            family = family_for(model_folder)
            check_files(model_folder)
            self._chat = ChatTokenizer(model_folder, family)
            limits = PixelLimits(min_pixels=data.min_pixels, max_pixels=data.max_pixels)
            processor = family.image_processor(limits)
            self._outputs = ProcessorOutputs(family)
        except DataError:
            raise
        except ModelError as error:
            raise DataError(str(error)) from error
        except (OSError, ValueError) as error:
            raise DataError(f"the model's folder {model_folder} cannot be read: {error}") from error
        self._limit = SizeLimit(
            max_tokens=max_tokens,
            oversize=data.oversize,
            image_start_id=self._chat.image_start_id,
        )
        of_videos = VideoLimits(
            fps=data.video_fps,
            max_frames=data.video_max_frames,
            max_pixels=data.video_max_pixels,
        )
        self._visuals = VisualReader(
            processor,
            lambda: family.video_processor(of_videos),
            limits=f"{limits} {of_videos}",
            skip_bad=data.bad_image == "skip",
        )
        self.held_out: SampleReader | None = None
        self._processed: tuple[int, ProcessedSample] | None = None

    def of(self, data: DataConfig, state: State | None = None) -> SampleReader:
        """A reader of another data set, which shares this one's tokenizer and processors.

        Args:
            data: The data set; other fields than its source are those of this reader.
            state: State that the data set must have; None takes its state now.

        Raises:
            DataError: The data set cannot be used.
        """
        other = copy.copy(self)
        other._dataset = Dataset(data, state)
        other._processed = None
        return other

    def __len__(self) -> int:
        return len(self._dataset)

    def where(self, sample: int) -> str:
        """File and line of a sample, or its place in another format."""
        return self._dataset.where(sample)

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

    def meta_and_text_together(
        self, calls: Sequence[tuple[int]]
    ) -> Iterator[tuple[SampleMeta, CompactText]]:
        """`meta_and_text` for each of several calls.

        A few samples at a time go through one stage after the other. Code and tables of a stage
        then stay in the caches of the core.
        """
        for first in range(0, len(calls), _STAGED):
            samples = [sample for (sample,) in calls[first : first + _STAGED]]
            read = [self.read(sample) for sample in samples]
            for meta, text in self._sizes_and_texts(samples, read):
                self.check_length(meta)
                yield meta, text

    def prompt(self, sample: int) -> tuple[SampleMeta, CompactText]:
        """Sizes and tokens of a sample up to its last answer, as `meta_and_text` has the whole."""
        meta, text = self.meta_and_text(sample)
        text = before_last_answer(text)
        visual_tokens = int(text["count"][text["kind"] > 0].sum())
        visuals = bisect_right(list(accumulate(meta.image_lengths)), visual_tokens)
        before = replace(
            meta,
            num_tokens=num_tokens(text),
            num_targets=num_targets(text),
            grids=meta.grids[:visuals],
            image_lengths=meta.image_lengths[:visuals],
            seconds=meta.seconds[:visuals],
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
        self._limit.check(meta, self.where(meta.index))

    def ends(self, text: CompactText) -> bool:
        """Whether the last target of a sample ends the answer, so that the model learns to."""
        targets = text["id"][text["is_target"]]
        return len(targets) > 0 and int(targets[-1]) in self._chat.end_ids

    def sizes_and_text(
        self, sample: int, read: Conversation | ProcessedSample | None = None
    ) -> tuple[SampleMeta, CompactText]:
        """As `meta_and_text`, also of a sample that `check_length` refuses.

        Args:
            sample: Number of the sample.
            read: What `read` returned for it, if it was called.

        Raises:
            DataError: The record, an image's header or the chat template cannot be used.
        """
        [found] = self._sizes_and_texts([sample], [read or self.read(sample)])
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """Text of tokens, with special tokens."""
        return self._chat.decode(ids, special=True)

    def text(self, sample: int, grids: Sequence[Grid]) -> CompactText:
        """Tokens of a sample after `data.oversize`, without reading its images.

        Args:
            sample: Number of the sample.
            grids: Planned grids of its images and videos, without those that do not fit.

        Raises:
            DataError: The record, the chat template or the header of a video cannot be used, or the
                outputs of a processor have other grids now.
        """
        conversation = self.read(sample)
        if not isinstance(conversation, Conversation):
            self._check_grids(sample, conversation, grids)
            return conversation.compact
        plans = self._visuals.plans(conversation, videos_only=True)
        tokens = self._chat.tokens(conversation, _video_texts(plans))
        lengths = [
            self._visuals.num_tokens(conversation, visual, grid)
            for visual, grid in enumerate(grids)
        ]
        return self._limit.text(tokens, lengths)

    def blank_images(self, sample: int) -> list[str]:
        """Names of the images of a sample whose grey values of 16 or 32 bits are lost.

        Raises:
            DataError: The record or an image cannot be used.
        """
        read = self.read(sample)
        visuals = read.visuals if isinstance(read, Conversation) else ()
        where = self.where(sample)
        return [v.name for v in visuals if v.kind is IMAGE and becomes_blank(v, where)]

    def pixels(self, sample: int, image: int, grid: Grid) -> SamplePixels:
        """One image or video of a sample, scaled to 8-bit values, or the floats of a processor.

        Args:
            sample: Number of the sample.
            image: Number of the image or video within the sample.
            grid: Its planned grid.

        Raises:
            DataError: The file cannot be used or no longer has the planned grid, and
                `data.bad_image` is `error`.
        """
        read = self.read(sample)
        if isinstance(read, Conversation):
            return self._visuals.pixels(read, image, grid)
        self._check_grids(sample, read, [grid], first=image)
        visual = read.visuals[image]
        return SamplePixels(values=visual.pixels.float().numpy(), kind=visual.kind)

    def features(
        self, sample: int, image: int, grid: Grid, folder: str, find: bool = True
    ) -> SamplePixels | StoredRows:
        """Features of one image or video from a cache, or what `pixels` returns with their key.

        Args:
            sample: As for `pixels`.
            image: As for `pixels`.
            grid: As for `pixels`.
            folder: Folder of the context in the cache.
            find: Whether to look for the features; otherwise they are as if not stored.

        Raises:
            DataError: As `pixels`.
        """
        read = self.read(sample)
        if isinstance(read, Conversation):
            return self._visuals.features(read, image, grid, folder, find=find)
        return self.pixels(sample, image, grid)

    def _sizes_and_texts(
        self, samples: Sequence[int], read: Sequence[Conversation | ProcessedSample]
    ) -> list[tuple[SampleMeta, CompactText]]:
        conversations = [each for each in read if isinstance(each, Conversation)]
        plans = [self._visuals.plans(conversation) for conversation in conversations]
        tokens = self._chat.tokens_together(conversations, [_video_texts(own) for own in plans])
        tokenized = iter(zip(plans, tokens, strict=True))
        return [
            self._limit.of_conversation(sample, *next(tokenized))
            if isinstance(each, Conversation)
            else self._limit.of_outputs(sample, each, self.where(sample))
            for sample, each in zip(samples, read, strict=True)
        ]

    def _check_grids(
        self, sample: int, processed: ProcessedSample, grids: Sequence[Grid], first: int = 0
    ) -> None:
        """Refuse a sample that has other images or videos than when its step was planned."""
        found = [visual.grid for visual in processed.visuals[first : first + len(grids)]]
        if found != [*grids]:
            raise DataError(
                f"{self.where(sample)}: its images and videos from number {first} on have the "
                f"grids {found}, but {[*grids]} were planned; the data set must return the same "
                "sample for an index each time, so augment only what keeps the sizes"
            )

    def read(self, sample: int) -> Conversation | ProcessedSample:
        """Turns and files of a sample, or what a processor made of them.

        The images and videos are in the order of the rendered text.

        Raises:
            DataError: The record or the chat template cannot be used.
        """
        # The images of a sample are asked for one by one.
        if self._processed is not None and self._processed[0] == sample:
            return self._processed[1]
        dataset = self._dataset
        record = dataset.record(sample)
        if "input_ids" in record:
            try:
                processed = self._outputs.read(record)
                self._chat.check_ids(processed.compact["id"], dataset.where(sample))
            except ModelError as error:
                raise DataError(f"{dataset.where(sample)}: {error}") from error
            self._processed = sample, processed
            return processed
        conversation = read_conversation(
            record,
            root=dataset.root(sample),
            where=dataset.where(sample),
            ignore=self._ignore,
        )
        return self._chat.in_rendered_order(conversation)


def _video_texts(plans: Sequence[PlannedVisual]) -> list[str]:
    return [plan.text for plan in plans if plan.text is not None]
