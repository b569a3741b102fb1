"""Tokens of samples: compact, with one entry for all tokens of an image, and expanded.

A *block* is a run of tokens that stand for an image, or for a video or a part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flowtrain.data.chat import ChatTokens

COMPACT = np.dtype([("id", "<i4"), ("count", "<i4"), ("is_target", "?"), ("kind", "u1")])
"""An entry of a compact text: a token id, how often it stands there, whether it is a target, and
its kind: 0 for text, 1 for an image, 2 for a video. A block is one entry, every other token has one
of its own."""

CompactText = NDArray[np.void]
"""Entries of dtype `COMPACT`, shape [entries]; texts side by side are one text."""


NO_TEXT: CompactText = np.empty(0, dtype=COMPACT)
"""A text without a token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleText:
    """Tokens as the model takes them, each array of shape [num_tokens]."""

    input_ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    """Not shifted; -100 where a token is no target."""
    mm_token_type_ids: NDArray[np.int64]
    """0 for text, 1 for image tokens, 2 for video tokens."""


def compact(
    tokens: ChatTokens, lengths: Sequence[int], *, image_start_id: int | None
) -> CompactText:
    """Tokens of a conversation, with the lengths of its images and videos.

    Args:
        tokens: Tokens of the conversation, one for each block.
        lengths: Tokens of its first visuals. The text ends before the first visual that has no
            length here.
        image_start_id: The token in front of a visual, which is left out with it.
    """
    end = len(tokens.ids)
    if len(lengths) < len(tokens.starts):
        end = int(tokens.starts[len(lengths)])
        if end and tokens.ids[end - 1] == image_start_id:
            end -= 1
    text = np.empty(end, dtype=COMPACT)
    text["id"] = tokens.ids[:end]
    text["count"] = _counts(tokens, lengths)[:end]
    text["is_target"] = tokens.is_target[:end]
    text["kind"] = tokens.kind[:end]
    return text


def _counts(tokens: ChatTokens, lengths: Sequence[int]) -> NDArray[np.int64]:
    """How often each token stands there; the blocks of a visual share its length equally."""
    counts = np.ones(len(tokens.ids), dtype=np.int64)
    block_at = np.flatnonzero(tokens.kind)
    owner = np.searchsorted(tokens.starts, block_at, side="right") - 1
    blocks = np.bincount(owner, minlength=len(tokens.starts))[: len(lengths)]
    known = owner < len(lengths)
    share = np.array(lengths, dtype=np.int64) // blocks
    counts[block_at[known]] = share[owner[known]]
    return counts


def truncate(text: CompactText, max_tokens: int) -> CompactText:
    """The first tokens of a text, none of which lies in a block that is cut."""
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
        mm_token_type_ids=text["kind"].astype(np.int64).repeat(counts),
    )


def visuals_within(tokens: ChatTokens, lengths: Sequence[int], max_tokens: int) -> int:
    """Number of leading visuals that lie whole within the first `max_tokens` tokens."""
    block_at = np.flatnonzero(tokens.kind)
    # The last block in front of the next visual.
    last = np.searchsorted(block_at, [*tokens.starts[1:], len(tokens.ids)]) - 1
    ends = _counts(tokens, lengths).cumsum()[block_at[last[: len(lengths)]]]
    return int(np.searchsorted(ends, max_tokens, side="right"))


def joined(texts: Sequence[CompactText]) -> CompactText:
    """Texts side by side."""
    # `np.concatenate` compares the fields of every two texts, which takes longer than to copy them.
    return from_bytes(b"".join(text.tobytes() for text in texts))


def split(text: CompactText, lengths: Sequence[int]) -> list[CompactText]:
    """The texts that were joined, from the number of tokens of each."""
    # An entry is one token, or all tokens of a block.
    ends = np.searchsorted(text["count"].cumsum(), np.cumsum(lengths), side="right")
    return [text[start:end] for start, end in pairwise([0, *ends.tolist()])]


def from_bytes(data: bytes) -> CompactText:
    """The text whose `tobytes` these are."""
    return np.frombuffer(data, dtype=COMPACT)
