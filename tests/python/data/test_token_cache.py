from __future__ import annotations

import numpy as np

from flowtrain.data.chat import ChatTokens
from flowtrain.data.token_cache import SAMPLE_TOKENS, TokenCache, TokenizedSample

LENGTH = 30


def test_the_cache_drops_the_sample_that_was_used_least_recently() -> None:
    read: list[int] = []

    def tokenized(sample: int) -> TokenizedSample:
        read.append(sample)
        flags = np.zeros(LENGTH, dtype=np.bool_)
        return (), ChatTokens(np.full(LENGTH, sample), flags, flags)

    cache = TokenCache(tokenized, max_tokens=3 * (LENGTH + SAMPLE_TOKENS))
    for sample in (0, 1, 2, 0, 3, 0, 2, 1):
        _, tokens = cache.get(sample)
        assert tokens.ids[0] == sample
    # Three are kept: 0, 1 and 2; 3 replaces 1, which is read again.
    assert read == [0, 1, 2, 3, 1]


def test_the_newest_sample_is_kept_whatever_its_length() -> None:
    flags = np.zeros(LENGTH, dtype=np.bool_)
    sample: TokenizedSample = (), ChatTokens(np.zeros(LENGTH, dtype=np.int64), flags, flags)
    reads: list[int] = []
    cache = TokenCache(lambda number: (reads.append(number), sample)[1], max_tokens=1)
    for number in (0, 0, 1, 0):
        cache.get(number)
    assert reads == [0, 1, 0]
