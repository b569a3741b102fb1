"""Expansion and truncation of a sample with two images, of 3 and 2 tokens."""

from __future__ import annotations

import numpy as np

from flowtrain.data.chat import ChatTokens
from flowtrain.data.text import expand, images_within, truncate

START, IMAGE = 8, 9
IDS = np.array([1, START, IMAGE, 2, START, IMAGE, 3])
TOKENS = ChatTokens(IDS, np.isin(IDS, (1, 3)), IDS == IMAGE)
WHOLE = [1, START, IMAGE, IMAGE, IMAGE, 2, START, IMAGE, IMAGE, 3]


def test_each_image_has_its_tokens_and_no_target() -> None:
    text = expand(TOKENS, [3, 2], image_start_id=START)
    assert text.input_ids.tolist() == WHOLE
    assert text.labels.tolist() == [1, *[-100] * 8, 3]
    assert text.mm_token_type_ids.tolist() == [int(id_ == IMAGE) for id_ in WHOLE]


def test_the_first_token_counts_as_no_target() -> None:
    assert expand(TOKENS, [3, 2], image_start_id=START).num_targets == 1


def test_text_ends_before_the_first_image_without_a_length() -> None:
    assert expand(TOKENS, [3], image_start_id=START).input_ids.tolist() == WHOLE[:6]
    assert expand(TOKENS, [3], image_start_id=None).input_ids.tolist() == WHOLE[:7]
    assert expand(TOKENS, [], image_start_id=START).input_ids.tolist() == [1]


def test_truncation_keeps_the_first_tokens() -> None:
    text = truncate(expand(TOKENS, [3, 2], image_start_id=START), 4)
    assert text.input_ids.tolist() == WHOLE[:4]
    assert len(text.labels) == len(text.mm_token_type_ids) == 4


def test_images_are_counted_if_they_fit_whole() -> None:
    counts = [images_within(TOKENS, [3, 2], limit) for limit in range(11)]
    assert counts == [0] * 5 + [1] * 4 + [2] * 2
