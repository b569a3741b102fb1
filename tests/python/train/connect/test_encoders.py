"""Which encoder ranks a command starts."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from flowtrain.config import ConfigError
from flowtrain.train.connect.encoders import choose_ranks, run_encoder_ranks


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


def test_a_command_that_could_start_no_rank_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.touch()
    for folder, ranks, timeout_s, message in (
        (tmp_path, 0, 1.0, "--ranks 0: it must be at least 1"),
        (tmp_path, None, math.nan, "--timeout nan: it must be 0 or more, and finite"),
        (file, None, 1.0, f"--job {file}: it is a file; give the folder of the job"),
    ):
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
            run_encoder_ranks(folder, ranks=ranks, rank=None, timeout_s=timeout_s)
