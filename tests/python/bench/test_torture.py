"""The torture finds nothing wrong with the ring, and does find what is taken out of it."""

from __future__ import annotations

import json

import pytest

from flowtrain.bench.torture import PARTS, Without, faults, storm
from flowtrain.cli.main import main

pytestmark = pytest.mark.multiproc

MOST_STORMS = 40


@pytest.mark.limit(300)
def test_a_storm_of_kills_and_stops_leaves_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["bench", "torture", "--kills", "100", "--stops", "3", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (code, faults(found)) == (0, {})
    assert (found["kills"], found["stops"]) == (100, 3)
    assert found["committed"] > 100
    assert {"reclaim_p50_ms", "reclaim_p99_ms", "idle_cpu_percent", "load_average"} <= set(found)


@pytest.mark.deep
@pytest.mark.limit(600)
@pytest.mark.parametrize("tight", [False, True])
def test_a_thousand_kills_leave_no_fault(tight: bool) -> None:
    found = storm(kills=1000, stops=20, tight=tight)
    assert faults(found) == {}
    assert (found["kills"], found["stops"]) == (1000, 20)
    assert found["committed"] > 1000
    if not tight:  # One cell may be in the hands of who is stopped.
        assert found["stalled_by_stop"] == 0
        assert found["kills_in_window"] >= 0.1


@pytest.mark.deep
@pytest.mark.limit(600)
@pytest.mark.parametrize("without", PARTS)
def test_each_part_of_the_protocol_is_missed(without: Without) -> None:
    storms = (
        storm(kills=2000, stops=0, seed=seed, tight=True, without=without)
        for seed in range(MOST_STORMS)
    )
    assert any(faults(found) for found in storms)


def test_an_unknown_part_is_named() -> None:
    with pytest.raises(ValueError, match="without='pin' must be publishing, taking, re-check or"):
        storm(kills=1, stops=0, without="pin")  # type: ignore[arg-type]
