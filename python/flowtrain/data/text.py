"""Tokens of samples: compact, with one entry for all tokens of an image, and expanded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowtrain.data.chat import ChatTokens

COMPACT = np.dtype([("id", "<i4"), ("count", "<i4"), ("is_target", "?"), ("is_image", "?")])
"""An entry of a compact text: a token id, how often it stands there, and what it is. An image is
one entry, every other token has one of its own."""

CompactText = NDArray[np.void]
"""Entries of dtype `COMPACT`, shape [entries]; texts side by side are one text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleText:
    """Tokens as the model takes them, each array of shape [num_tokens]."""

    input_ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    """Not shifted; -100 where a token is no target."""
    mm_token_type_ids: NDArray[np.int64]
    """0 for text, 1 for image tokens."""


def compact(
    tokens: ChatTokens, image_lengths: Sequence[int], *, image_start_id: int | None
) -> CompactText:
    """Tokens of a conversation, with the length of each image.

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
    text = np.empty(end, dtype=COMPACT)
    text["id"] = tokens.ids[:end]
    text["count"] = 1
    text["count"][image_at[: len(image_lengths)]] = image_lengths
    text["is_target"] = tokens.is_target[:end]
    text["is_image"] = tokens.is_image[:end]
    return text


def truncate(text: CompactText, max_tokens: int) -> CompactText:
    """The first tokens of a text, none of which lies in an image that is cut."""
    return text[: np.searchsorted(text["count"].cumsum(), max_tokens, side="right")]


def before_last_answer(text: CompactText) -> CompactText:
    """The text in front of its last run of targets; empty if there is no target."""
    is_target = text["is_target"]
    starts = np.flatnonzero(is_target & ~np.concatenate(([False], is_target[:-1])))
    return text[: starts[-1]] if len(starts) else text[:0]


def with_tokens(text: CompactText, ids: Sequence[int]) -> CompactText:
    """The text with further tokens at its end."""
    more = np.zeros(len(ids), dtype=COMPACT)
    more["id"] = ids
    more["count"] = 1
    return joined([text, more])


def num_tokens(text: CompactText) -> int:
    """Tokens of a text, with all tokens of its images."""
    return int(text["count"].sum())


def num_targets(text: CompactText) -> int:
    """Target tokens of a sample, without its first token, which nothing predicts."""
    return int(text["is_target"][1:].sum())


def expand(text: CompactText) -> SampleText:
    """All tokens of a text. Image tokens are never targets."""
    counts = text["count"]
    ids = text["id"].astype(np.int64)
    return SampleText(
        input_ids=ids.repeat(counts),
        labels=np.where(text["is_target"], ids, -100).repeat(counts),
        mm_token_type_ids=text["is_image"].astype(np.int64).repeat(counts),
    )


def images_within(tokens: ChatTokens, image_lengths: Sequence[int], max_tokens: int) -> int:
    """Number of leading images that lie whole within the first `max_tokens` tokens."""
    image_at = np.flatnonzero(tokens.is_image)
    ends = image_at - np.arange(len(image_lengths)) + np.cumsum(image_lengths, dtype=np.int64)
    return int(np.searchsorted(ends, max_tokens, side="right"))


def joined(texts: Sequence[CompactText]) -> CompactText:
    """Texts side by side."""
    # `np.concatenate` compares the fields of every two texts, which takes longer than to copy them.
    return from_bytes(b"".join(text.tobytes() for text in texts))


def from_bytes(data: bytes) -> CompactText:
    """The text whose `tobytes` these are."""
    return np.frombuffer(data, dtype=COMPACT)
