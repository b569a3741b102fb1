"""Fault injection finds no fault in the ring, and finds the faults of a ring without a part."""

from __future__ import annotations

import json

import pytest

from flowtrain.bench.torture import PARTS, Without, faults, inject_faults
from flowtrain.cli.main import main

pytestmark = pytest.mark.multiproc

MAX_RUNS = 40


@pytest.mark.limit(300)
def test_kills_and_stops_lead_to_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["bench", "torture", "--kills", "100", "--stops", "3", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (code, faults(found)) == (0, {})
    assert (found["kills"], found["stops"]) == (100, 3)
    assert found["committed"] > found["shrunk"] > 100
    assert {"reclaim_p50_ms", "reclaim_p99_ms", "idle_cpu_percent", "load_average"} <= set(found)


@pytest.mark.deep
@pytest.mark.limit(600)
@pytest.mark.parametrize("tight", [False, True])
def test_a_thousand_kills_lead_to_no_fault(tight: bool) -> None:
    found = inject_faults(kills=1000, stops=20, tight=tight)
    assert faults(found) == {}
    assert (found["kills"], found["stops"]) == (1000, 20)
    assert found["committed"] > 1000
    if not tight:  # A stopped participant may hold the only cell.
        assert found["stalled_by_stop"] == 0
        assert found["kills_in_window"] >= 0.1


@pytest.mark.deep
@pytest.mark.limit(600)
@pytest.mark.parametrize("without", PARTS)
def test_a_ring_without_any_one_part_shows_faults(without: Without) -> None:
    runs = (
        inject_faults(kills=2000, stops=0, seed=seed, tight=True, without=without)
        for seed in range(MAX_RUNS)
    )
    assert any(faults(found) for found in runs)


def test_a_seed_out_of_range_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "torture", "--seed", "-1"]) == 2
    assert "--seed -1: it must be from 0 to 18446744073709551615" in capsys.readouterr().err


def test_an_unknown_part_is_named() -> None:
    with pytest.raises(
        ValueError, match="without='takings' must be publishing, taking, re-check or"
    ):
        inject_faults(kills=1, stops=0, without="takings")  # type: ignore[arg-type]
