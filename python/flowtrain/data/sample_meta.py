"""Sizes and tokens of a sample after `data.oversize`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from flowtrain.cost.flops import Grid
from flowtrain.data.chat import ChatTokens
from flowtrain.data.errors import DataError
from flowtrain.data.pixels import PlannedVisual
from flowtrain.data.text import (
    CompactText,
    compact,
    num_targets,
    num_tokens,
    truncate,
    visuals_within,
)

if TYPE_CHECKING:
    from flowtrain.data.processed import ProcessedSample, ProcessedVisual

Fit = Literal["whole", "truncated", "dropped", "refused"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleMeta:
    """Sizes of a sample, from its text and the headers of its images and videos."""

    index: int
    num_tokens: int
    num_targets: int
    """Target tokens, without the first token of the sample, which nothing predicts."""
    grids: tuple[Grid, ...]
    """Grid of each image and video."""
    image_lengths: tuple[int, ...]
    """Tokens of each image and video."""
    seconds: tuple[float, ...] = ()
    """For each grid the seconds between the frames of a video, or 0 for an image; empty without a
    video."""
    fit: Fit = "whole"
    """Effect of `data.oversize` on the sample; the sizes are those after it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeLimit:
    """The longest sample that a microbatch takes, and what becomes of longer ones."""

    max_tokens: int
    oversize: Literal["error", "drop", "truncate"]
    """`data.oversize`."""
    image_start_id: int | None
    """The token in front of an image, or None; it is left out with its image."""

    def of_conversation(
        self, sample: int, plans: tuple[PlannedVisual, ...], tokens: ChatTokens
    ) -> tuple[SampleMeta, CompactText]:
        """Sizes and text of a tokenized conversation with its images and videos."""
        lengths = [plan.num_tokens for plan in plans]
        num_texts = len(tokens.ids) - np.count_nonzero(tokens.kind)
        is_whole = num_texts + sum(lengths) <= self.max_tokens
        if self.oversize == "truncate":
            plans = plans[: visuals_within(tokens, lengths, self.max_tokens)]
            lengths = lengths[: len(plans)]
        text = self.text(tokens, lengths)
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
            grids=tuple(plan.grid for plan in plans),
            image_lengths=tuple(lengths),
            seconds=_seconds(plans),
            fit="whole" if is_whole else too_long[self.oversize],
        )
        return meta, text

    def of_outputs(
        self, sample: int, processed: ProcessedSample, where: str
    ) -> tuple[SampleMeta, CompactText]:
        """Sizes and text of what a processor returned.

        Raises:
            DataError: The sample is too long, and must be truncated.
        """
        text = processed.compact
        tokens, visuals = num_tokens(text), processed.visuals
        if tokens <= self.max_tokens:
            fit: Fit = "whole"
        elif self.oversize == "truncate":
            raise DataError(
                f"{where}: {tokens} tokens exceed train.microbatch_tokens="
                f"{self.max_tokens}, and outputs of a processor are not truncated; truncate the "
                "text in front of the processor, or set data.oversize to drop or error"
            )
        else:
            fit = "dropped" if self.oversize == "drop" else "refused"
        meta = SampleMeta(
            index=sample,
            num_tokens=tokens,
            num_targets=num_targets(text),
            grids=tuple(visual.grid for visual in visuals),
            image_lengths=tuple(visual.num_tokens for visual in visuals),
            seconds=_seconds(visuals),
            fit=fit,
        )
        return meta, text

    def check(self, meta: SampleMeta, where: str) -> None:
        """Refuse a sample that is too long.

        Raises:
            DataError: It is, and `data.oversize` is `error`.
        """
        if meta.fit == "refused":
            raise DataError(
                f"{where}: {meta.num_tokens} tokens exceed "
                f"train.microbatch_tokens={self.max_tokens} ({sum(meta.image_lengths)} of them in "
                "images and videos); raise it, drop the line, or set data.oversize to drop or "
                "truncate"
            )

    def text(self, tokens: ChatTokens, lengths: Sequence[int]) -> CompactText:
        """Tokens of a conversation whose images and videos have these numbers of tokens."""
        text = compact(tokens, lengths, image_start_id=self.image_start_id)
        return truncate(text, self.max_tokens) if self.oversize == "truncate" else text


def _seconds(visuals: Sequence[PlannedVisual | ProcessedVisual]) -> tuple[float, ...]:
    """Seconds between the frames of each video and 0 for each image; empty without a video."""
    seconds = tuple(visual.seconds for visual in visuals)
    return seconds if any(seconds) else ()
