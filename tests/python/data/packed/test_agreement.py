from __future__ import annotations

from flowtrain.data.packed.agreement import _difference


def test_the_difference_is_found_between_ranks_with_different_names() -> None:
    indexed, streamed = {"max_age": 0, "samples": 8}, {"max_age": 0, "num_workers": 0}
    assert _difference([indexed, streamed]) == (1, "samples")
    assert _difference([streamed, streamed, indexed]) == (2, "num_workers")
    assert _difference([{"max_age": 0}, indexed]) == (1, "samples")
