"""Expansion and truncation of a sample with two images, of 3 and 2 tokens."""

from __future__ import annotations

import numpy as np

from flowtrain.data.chat import ChatTokens
from flowtrain.data.text import compact, expand, images_within, num_targets, num_tokens, truncate

START, IMAGE = 8, 9
IDS = np.array([1, START, IMAGE, 2, START, IMAGE, 3])
TOKENS = ChatTokens(IDS, np.isin(IDS, (1, 3)), IDS == IMAGE)
WHOLE = [1, START, IMAGE, IMAGE, IMAGE, 2, START, IMAGE, IMAGE, 3]


def test_each_image_has_its_tokens_and_no_target() -> None:
    text = expand(compact(TOKENS, [3, 2], image_start_id=START))
    assert text.input_ids.tolist() == WHOLE
    assert text.labels.tolist() == [1, *[-100] * 8, 3]
    assert text.mm_token_type_ids.tolist() == [int(id_ == IMAGE) for id_ in WHOLE]


def test_the_first_token_counts_as_no_target() -> None:
    assert num_targets(compact(TOKENS, [3, 2], image_start_id=START)) == 1


def test_text_ends_before_the_first_image_without_a_length() -> None:
    for lengths, start, end in (([3], START, 6), ([3], None, 7), ([], START, 1)):
        text = compact(TOKENS, lengths, image_start_id=start)
        assert expand(text).input_ids.tolist() == WHOLE[:end]
        assert num_tokens(text) == end


def test_truncation_keeps_the_first_tokens() -> None:
    text = compact(TOKENS, [3, 2], image_start_id=START)
    for limit in (1, 2, 5, 6, 7, 9, 10, 11):
        assert expand(truncate(text, limit)).input_ids.tolist() == WHOLE[:limit]


def test_images_are_counted_if_they_fit_whole() -> None:
    counts = [images_within(TOKENS, [3, 2], limit) for limit in range(11)]
    assert counts == [0] * 5 + [1] * 4 + [2] * 2
