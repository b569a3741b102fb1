"""If packed loaders differ between ranks, all ranks raise an error before a batch differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from forked import start_program

PROGRAM = Path(__file__).with_name("packed_ranks.py")

Found = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("ranks")
    ranks = [start_program(PROGRAM, folder, rank) for rank in range(2)]
    assert [rank.wait(timeout=100) for rank in ranks] == [0, 0]
    zero, one = (json.loads((folder / f"{rank}.json").read_text()) for rank in range(2))
    return zero, one


@pytest.mark.limit(120)
@pytest.mark.parametrize("case", ["alike", "alike, a stream", "alike, a group"])
def test_ranks_with_equal_loaders_divide_the_samples(found: Found, case: str) -> None:
    zero, one = (rank[case] for rank in found)
    assert zero["error"] is None and one["error"] is None
    assert sorted(zero["loaded"] + one["loaded"]) == list(range(48))


@pytest.mark.limit(120)
@pytest.mark.parametrize(
    ("case", "differs"),
    [
        ("seed", "step 0 of epoch 0: rank 1 has seed=1, but rank 0 has 0"),
        ("data", "rank 1 has samples=47, but rank 0 has 48"),
        ("microbatches", "rank 1 has step_samples=16, but rank 0 has 8"),
        ("costs", "rank 1 has sizes="),
        ("epoch", "rank 1 has epoch=1, but rank 0 has 0"),
        ("numpy", "rank 1 has numpy=1.0, but rank 0 has 0.0"),
        ("a stream that is sharded", "rank 1 has tokens_of_step="),
        ("equal samples that are sharded", "rank 1 has checksum_of_step="),
    ],
)
def test_ranks_with_different_loaders_load_nothing_and_name_the_difference(
    found: Found, case: str, differs: str
) -> None:
    zero, one = (rank[case] for rank in found)
    assert zero == one == {"loaded": [], "error": zero["error"]}
    assert zero["error"].startswith("PackingError") and differs in zero["error"]


@pytest.mark.limit(120)
def test_a_stream_that_ends_early_on_one_rank_is_an_error_on_all(found: Found) -> None:
    zero, one = (rank["a stream that ends"] for rank in found)
    assert sorted(zero["loaded"] + one["loaded"]) == list(range(32))
    assert zero["error"] == one["error"]
    assert "step 2 of epoch 0: rank 1 has samples_of_step=0, but rank 0 has 16" in zero["error"]


@pytest.mark.limit(120)
def test_closed_loaders_leave_no_threads_and_no_sockets(found: Found) -> None:
    assert sum(rank["closed"]["rows"] for rank in found) == 6 * 48
    for rank in found:
        first, *later = rank["closed"]["held"].values()
        assert later == [first] * 4


@pytest.mark.limit(120)
def test_loaders_that_end_at_once_do_not_end_the_connections_of_other_ranks(found: Found) -> None:
    assert [rank["dropped"]["error"] for rank in found] == [None, None]


@pytest.mark.limit(120)
def test_accelerate_divides_and_skips_nothing_again(found: Found) -> None:
    zero, one = (rank["prepared"] for rank in found)
    assert sorted(zero["loaded"] + one["loaded"]) == list(range(48))
    for rank in (zero, one):
        assert rank["resumes"]
        for refused in ("skip", "prepare_data_loader"):
            assert "load_state_dict skips what was trained" in rank[refused]["error"]
        assert rank["divided"]["loaded"] == []
        assert "Accelerator(gradient_accumulation_steps=2)" in rank["divided"]["error"]
        assert rank["divided, without gradients"]["error"] is None


@pytest.mark.limit(120)
def test_a_rank_whose_peers_do_not_take_part_gets_an_error(found: Found) -> None:
    made = found[0]["made alone"]["error"]
    assert (
        "not all ranks made their loader within timeout_s=0.5: a rank has ended, or makes" in made
    )
    alone = found[0]["alone"]
    assert alone["loaded"] == []
    assert "timeout_s=1: a rank has ended, or does not iterate its loader" in alone["error"]
