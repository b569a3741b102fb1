"""Tokens of a sample: the one token that stands for an image becomes all tokens of the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowtrain.data.chat import ChatTokens


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleText:
    """Tokens of a sample, each array of shape [num_tokens]."""

    input_ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    """Not shifted; -100 where a token is no target."""
    mm_token_type_ids: NDArray[np.int64]
    """0 for text, 1 for image tokens."""

    @property
    def num_targets(self) -> int:
        """Target tokens, without the first token of the sample, which nothing predicts."""
        return int((self.labels[1:] != -100).sum())


def expand(
    tokens: ChatTokens, image_lengths: Sequence[int], *, image_start_id: int | None
) -> SampleText:
    """Repeat the token of each image.

    Args:
        tokens: Tokens of the conversation, one for each image.
        image_lengths: Tokens of its first images. The text ends before the first image that has
            no length here.
        image_start_id: The token in front of an image, which is left out with the image.
    """
    end = len(tokens.ids)
    image_at = np.flatnonzero(tokens.is_image)
    if len(image_lengths) < len(image_at):
        end = int(image_at[len(image_lengths)])
        if end and tokens.ids[end - 1] == image_start_id:
            end -= 1
    ids, is_image = tokens.ids[:end], tokens.is_image[:end]
    labels = np.where(tokens.is_target[:end], ids, -100)
    repeats = np.ones(len(ids), dtype=np.int64)
    repeats[is_image] = image_lengths
    return SampleText(
        input_ids=np.repeat(ids, repeats),
        labels=np.repeat(labels, repeats),
        mm_token_type_ids=np.repeat(is_image.astype(np.int64), repeats),
    )


def truncate(text: SampleText, max_tokens: int) -> SampleText:
    """The first tokens of a sample."""
    return SampleText(
        input_ids=text.input_ids[:max_tokens],
        labels=text.labels[:max_tokens],
        mm_token_type_ids=text.mm_token_type_ids[:max_tokens],
    )


def images_within(tokens: ChatTokens, image_lengths: Sequence[int], max_tokens: int) -> int:
    """Number of leading images that lie whole within the first `max_tokens` tokens."""
    image_at = np.flatnonzero(tokens.is_image)
    ends = image_at - np.arange(len(image_lengths)) + np.cumsum(image_lengths, dtype=np.int64)
    return int(np.searchsorted(ends, max_tokens, side="right"))
