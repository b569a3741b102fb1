"""The tokens of the samples that were used most recently, bounded in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from flowtrain.data.chat import ChatTokens

# A token takes 10 bytes. An image is one token, and the rest of a sample counts as 100 tokens.
MAX_TOKENS = 1 << 22
SAMPLE_TOKENS = 100

TokenizedSample = tuple[tuple[Path, ...], ChatTokens]
"""Images of a sample, and its tokens with one for each image."""


class TokenCache:
    """Keeps tokenized samples: sizes are read for the plan, and tokens a few steps later.

    Args:
        read: Reads and tokenizes a sample by its number.
        max_tokens: Tokens to keep, and SAMPLE_TOKENS more for each sample. The newest sample is
            always kept.
    """

    def __init__(
        self, read: Callable[[int], TokenizedSample], max_tokens: int = MAX_TOKENS
    ) -> None:
        self._read = read
        self._max_tokens = max_tokens
        self._recent: OrderedDict[int, TokenizedSample] = OrderedDict()
        self._num_tokens = 0

    def get(self, sample: int) -> TokenizedSample:
        """A sample, read if it is not kept."""
        if sample in self._recent:
            self._recent.move_to_end(sample)
            return self._recent[sample]
        images, tokens = self._recent[sample] = self._read(sample)
        self._num_tokens += len(tokens.ids) + SAMPLE_TOKENS
        while self._num_tokens > self._max_tokens and len(self._recent) > 1:
            _, (_, oldest) = self._recent.popitem(last=False)
            self._num_tokens -= len(oldest.ids) + SAMPLE_TOKENS
        return images, tokens
