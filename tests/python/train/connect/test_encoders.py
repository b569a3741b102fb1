"""Which encoder ranks a command starts."""

from __future__ import annotations

import pytest

from flowtrain.config import ConfigError
from flowtrain.train.connect.encoders import choose_ranks


@pytest.mark.parametrize(
    ("ranks", "rank", "expected"),
    [(None, None, [0, 1]), (2, None, [0, 1]), (None, "1", [1]), (2, "1", [0, 1])],
)
def test_a_command_starts_all_ranks_unless_the_environment_names_one(
    ranks: int | None, rank: str | None, expected: list[int]
) -> None:
    assert list(choose_ranks(ranks, rank, size=2)) == expected


@pytest.mark.parametrize(
    ("ranks", "rank", "message"),
    [
        (3, None, "--ranks 3: the loop has encoder_ranks=2"),
        (None, "2", "RANK=2 in the environment: the loop has encoder_ranks=2"),
        (None, "-1", "RANK=-1 in the environment: the loop has encoder_ranks=2"),
    ],
)
def test_ranks_that_the_loop_does_not_have_are_refused(
    ranks: int | None, rank: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        choose_ranks(ranks, rank, size=2)
