"""Expansion and truncation of a sample with two images, and of one with a video in blocks."""

from __future__ import annotations

import numpy as np

from flowtrain.data.chat import ChatTokens
from flowtrain.data.text import (
    compact,
    expand,
    joined,
    num_targets,
    num_tokens,
    split,
    truncate,
    visuals_within,
)

START, IMAGE = 8, 9
IDS = np.array([1, START, IMAGE, 2, START, IMAGE, 3])
TOKENS = ChatTokens(IDS, np.isin(IDS, (1, 3)), (IDS == IMAGE).astype(np.uint8), np.array([2, 5]))
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
    counts = [visuals_within(TOKENS, [3, 2], limit) for limit in range(11)]
    assert counts == [0] * 5 + [1] * 4 + [2] * 2


def test_blocks_of_a_video_share_its_tokens_and_go_together() -> None:
    video, time = 7, 6
    # An image of 2 tokens, a video of 6 in two blocks with a time in front of each, an image of 1.
    ids = np.array([1, START, IMAGE, START, time, START, video, time, START, video, IMAGE, 3])
    kind = np.select([ids == IMAGE, ids == video], [1, 2]).astype(np.uint8)
    tokens = ChatTokens(ids, ids == 3, kind, np.array([2, 4, 10]))
    both = compact(tokens, [2, 6, 1], image_start_id=START)
    text = expand(both)
    of_video = [time, START, video, video, video]
    whole = [1, START, IMAGE, IMAGE, START, *of_video, *of_video, IMAGE, 3]
    assert text.input_ids.tolist() == whole
    kinds = {IMAGE: 1, video: 2}
    assert text.mm_token_type_ids.tolist() == [kinds.get(id_, 0) for id_ in whole]
    parts = split(joined([compact(TOKENS, [3, 2], image_start_id=START), both]), [10, 0, 17])
    assert [num_tokens(part) for part in parts] == [10, 0, 17]
    # No part of a video without a length is left, not even its times.
    cut = expand(compact(tokens, [2], image_start_id=START))
    assert cut.input_ids.tolist() == [1, START, IMAGE, IMAGE]
    counts = [visuals_within(tokens, [2, 6, 1], limit) for limit in range(18)]
    assert counts == [0] * 4 + [1] * 11 + [2] + [3] * 2
