"""The packing benchmark checks its bars on rows of plain data, and resumes a partial run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from packing import cases, lockstep
from packing.bars import Bar
from packing.cases import Case
from packing.rows import Rows, summary
from peers.limited import limited

CASE = Case(part="lockstep", scale="256/8/4", load="tiles", seed=1)
OURS = {"name": "flowtrain-best", "gap": 0.3, "ms": 1.0, "over": 0, "slots": 4}
PLACED = OURS | {"name": cases.PLACED, "gap": 0.6, "ms": 0.1}


def peer(name: str = "binpacking", **figures: Any) -> dict[str, Any]:
    return {"name": name, "gap": 9.0, "ms": 99.0, "over": 0, "slots": 4} | figures


def judged(*peers: dict[str, Any]) -> dict[str, Bar]:
    rows = Rows()
    rows.add(CASE, [OURS, PLACED, *peers])
    return {bar.name: bar for bar in lockstep.bars(rows, CASE.scale)}


@pytest.mark.parametrize(
    ("figures", "points", "met"),
    [
        ({"gap": 0.25}, 0.05, True),
        ({"gap": 0.1}, 0.2, False),
        ({"gap": 0.1, "over": 1}, float("-inf"), True),
        ({"gap": 0.1, "slots": 5}, float("-inf"), True),
    ],
)
def test_only_a_feasible_peer_counts_as_ahead(
    figures: dict[str, Any], points: float, met: bool
) -> None:
    bar = judged(peer(**figures))["points behind a feasible peer, 256/8/4"]
    assert (bar.value, bar.met) == (pytest.approx(points), met)


@pytest.mark.parametrize(
    ("figures", "times", "met"),
    [
        ({"gap": 0.59, "ms": 9.0}, 9.0, False),
        ({"gap": 0.59, "ms": 11.0}, 11.0, True),
        # FlowTrain may also be worse by a little.
        ({"gap": 0.61, "ms": 0.9}, 9.0, False),
        ({"gap": 0.81, "ms": 0.9}, float("inf"), True),
        ({"gap": 0.59, "ms": 9.0, "over": 1}, float("inf"), True),
        # FlowTrain's own policies are no peers.
        ({"name": "longest-first", "gap": 0.3, "ms": 0.1}, float("inf"), True),
    ],
)
def test_times_are_compared_with_peers_of_similar_quality(
    figures: dict[str, Any], times: float, met: bool
) -> None:
    bar = judged(peer(**figures))["times as fast as a comparable peer, 256/8/4"]
    assert (bar.value, bar.met) == (pytest.approx(times), met)


def test_a_bar_that_needs_a_missing_peer_is_not_met() -> None:
    bars = judged({"name": "binpacking", "reason": "no such module", "missing": True})
    behind = bars["points behind a feasible peer, 256/8/4"]
    assert behind.as_dict() == {
        "name": behind.name,
        "value": None,
        "bar": 0.1,
        "met": False,
        "where": "not installed: binpacking",
    }


def test_the_bar_is_on_the_median_of_the_worst_load() -> None:
    rows = Rows()
    for load, gaps in (("tiles", (0.1, 0.2, 9.0)), ("video", (0.7, 0.8, 0.9))):
        for seed, gap in enumerate(gaps):
            case = Case(part="lockstep", scale="256/8/4", load=load, seed=seed)
            rows.add(case, [OURS | {"gap": gap}])
    bar = next(lockstep.bars(rows, "256/8/4"))
    assert (bar.value, bar.where, bar.met) == (0.8, "video", False)
    assert [row["gap"] for row in summary(rows.all)] == [0.2, 0.8]


def test_a_call_over_its_limit_is_stopped_with_a_reason() -> None:
    assert limited(lambda: time.sleep(100), seconds=0.1)[1:] == ("longer than 0.1 s", True)
    assert limited(lambda: [] + 1, seconds=60)[1].startswith("TypeError")  # type: ignore[operator]
    assert limited(lambda: 7, seconds=60).result == 7


@pytest.mark.multiproc
def test_a_run_resumes_where_it_stopped(tmp_path: Path) -> None:
    command = [
        sys.executable, "benchmarks/bench_packing.py", "--json", "--ours", "--parts", "lockstep",
        "--scales", "256/8/4", "--loads", "tiles", "--rows", str(tmp_path / "rows.jsonl"),
    ]  # fmt: skip
    root = Path(__file__).parents[2]
    measured = []
    for seeds in (["1"], ["1", "2"], ["1", "2"]):
        done = subprocess.run(
            [*command, "--seeds", *seeds], cwd=root, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        measured.append(len(done.stderr.splitlines()))
    # With refinement and without.
    assert measured == [2, 2, 0]
    assert found["results"][0]["seeds"] == 2
    assert all(bar["met"] for bar in found["bars"])
