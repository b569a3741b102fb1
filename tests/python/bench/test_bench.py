"""The microbenchmarks run on a small machine, and measure what they say."""

from __future__ import annotations

import json

import pytest

from flowtrain.cli.main import main


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, float]]:
    assert main(["bench", *words, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_an_item_is_handed_over_in_the_same_memory(capsys: pytest.CaptureFixture[str]) -> None:
    [row] = rows(capsys, "handoff", "--bytes", "100000", "--rounds", "50")
    assert row["same_physical_pages"] is True
    assert 0 < row["spin_p50_us"] <= row["spin_p99_us"]


def test_bandwidth_is_measured_for_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "pool", "--bytes", "4096", "65536", "--seconds", "0.02")
    assert [row["item_bytes"] for row in found] == [4096, 65536]
    for row in found:
        assert all(row[key] > 0 for key in ("write_cold", "write", "read", "flow", "memcpy"))


def test_descriptors_are_counted_one_by_one_and_in_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = rows(capsys, "ring", "--seconds", "0.01")
    assert {(row["producers"], row["batch"]) for row in found} == {
        (pairs, batch) for pairs in (1, 2, 4) for batch in (1, 16)
    }
    assert all(row["single"] > 0 and row["runs"] > 0 for row in found)


def test_slabs_are_measured_up_to_a_nearly_full_pool(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "slab", "--rounds", "20")
    assert max(row["fill"] for row in found) == 0.97
    assert {row["classes"] for row in found} == {"one", "eight"}
