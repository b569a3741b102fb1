"""If a rank is killed, the other ranks end, name it, and leave nothing behind.

Launcher and ranks are forks of the fork server of the tests, but where rank colocated.0
or the launcher is killed: there they are executed.
"""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import faults
import pytest
from support import Run, descendants, nothing_left, run_tree
from terminals import has_cursor, rows

from flowtrain.train.state.logs import TIMING, read_log

LONGEST_S = 30.0

deep = pytest.mark.deep

DECOUPLED = {"encoder_ranks": 2, "backbone_ranks": 2}
COLOCATED = {"ranks": 2}


def long_run(
    folder: Path,
    data: Path,
    layout: dict[str, int] = DECOUPLED,
    *,
    on_terminal: bool = False,
    sharding: str = "replicated",
    executed: bool = False,
    **debug: float | str,
) -> Run:
    tree = run_tree(
        folder / "run",
        data,
        train={"steps": 500},
        flow=layout,
        parallel={module: {"sharding": sharding} for module in ("encoder", "backbone")},
        debug=debug,
    )
    return Run(tree, on_terminal=on_terminal, executed=executed)


def kill_and_check(run: Run, victim: str) -> str:
    """Kill a rank; the others end soon and name it, and no process of the run remains.

    Returns:
        What the launcher has printed.
    """
    ranks = run.ranks()
    assert len(ranks) == (2 if victim.startswith("colocated") else 4)
    os.kill(ranks[victim], signal.SIGKILL)
    killed = time.monotonic()
    code, errors = run.wait()
    assert time.monotonic() - killed < LONGEST_S
    assert code == 1
    assert f"rank {victim} (pid {ranks[victim]}): killed by signal 9" in errors
    for name, text in run.errors().items():
        assert name == victim or f"rank {victim} (pid {ranks[victim]}) died" in text, name
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks.values())
    return errors


@pytest.mark.parametrize(
    "victim",
    [
        "encoder.1",
        pytest.param("backbone.0", marks=deep),
        pytest.param("backbone.1", marks=deep),
        "colocated.0",
        pytest.param("colocated.1", marks=deep),
    ],
)
def test_a_killed_rank_ends_the_run_and_is_named(victim: str, tmp_path: Path, data: Path) -> None:
    layout = COLOCATED if victim.startswith("colocated") else DECOUPLED
    with nothing_left():
        # Delays: ranks wait for each other for records and for decisions.
        executed = victim == "colocated.0"
        run = long_run(tmp_path, data, layout, on_terminal=True, executed=executed, delay_ms=20.0)
        run.wait_for_steps(3)
        errors = kill_and_check(run, victim)
        # What a rank prints, the bar, and the end have rows of their own.
        for begin in (
            "after 1/500 steps  loss",
            r"step \d+/500  loss \d",
            "flowtrain: the run end",
        ):
            assert any(re.match(begin, row) for row in rows(errors)), (begin, errors)
        assert has_cursor(errors)


@pytest.mark.parametrize(
    ("victim", "sharding"),
    [
        pytest.param("encoder.1", "replicated", marks=deep),
        pytest.param("backbone.1", "replicated", marks=deep),
        ("colocated.1", "replicated"),
        ("colocated.1", "full"),
    ],
)
def test_a_rank_killed_while_its_peer_is_inside_a_collective_is_named(
    victim: str, sharding: str, tmp_path: Path, data: Path
) -> None:
    layout = COLOCATED if victim.startswith("colocated") else DECOUPLED
    fault = "halt" if sharding == "replicated" else "halt_in_forward"
    with nothing_left():
        run = long_run(tmp_path, data, layout, sharding=sharding, fault=f"faults:{fault}:{victim}")
        run.wait_for_steps(1)
        status = Path(f"/proc/{run.ranks()[victim]}/status")
        end = time.monotonic() + LONGEST_S
        while "State:\tT" not in status.read_text():
            assert time.monotonic() < end
            time.sleep(0.05)
        # Until now its peer has entered the reduction.
        time.sleep(1.0)
        kill_and_check(run, victim)


def test_a_killed_launcher_ends_every_rank(tmp_path: Path, data: Path) -> None:
    with nothing_left():
        layout = {"encoder_ranks": 1, "backbone_ranks": 1}
        run = long_run(tmp_path, data, layout, executed=True, delay_ms=20.0)
        run.wait_for_steps(2)
        ranks = descendants(run.process.pid)
        run.process.kill()
        end = time.monotonic() + LONGEST_S
        while any(Path(f"/proc/{pid}").exists() for pid in ranks):
            assert time.monotonic() < end
            time.sleep(0.1)
        run.wait()
        assert all("rank host" in text for text in run.errors().values())


@deep
@pytest.mark.limit(240)
def test_a_rank_that_is_slower_than_the_deadline_is_waited_for(tmp_path: Path, data: Path) -> None:
    tree = run_tree(
        tmp_path / "run",
        data,
        flow={"encoder_ranks": 2, "backbone_ranks": 2, "timeout_s": 0.4 * faults.PAUSE_S},
        # The others wait in the pool, for a checkpoint, and in a collective.
        checkpoint={"every": 2},
        debug={"fault": "faults:pause:backbone.0"},
    )
    run = Run(tree)
    assert len(run.succeed()) == 4
    # The log includes the pauses.
    assert sum(step["seconds"] for step in read_log(run.folder / TIMING)) > 3 * faults.PAUSE_S


@deep
@pytest.mark.limit(240)
def test_a_stopped_rank_ends_the_run_and_is_named(tmp_path: Path, data: Path) -> None:
    tree = run_tree(
        tmp_path / "run",
        data,
        flow={"encoder_ranks": 2, "backbone_ranks": 2, "timeout_s": 2.0},
        debug={"fault": "faults:halt:encoder.1"},
    )
    with nothing_left():
        code, errors = Run(tree).wait()
    assert code == 1
    assert "no heartbeat for flow.timeout_s=2 s from encoder.1 (pid " in errors


@deep
def test_a_rank_that_does_not_come_to_a_pass_of_a_sharded_module_is_told(
    tmp_path: Path, data: Path
) -> None:
    run = run_tree(
        tmp_path / "run",
        data,
        flow={**COLOCATED, "timeout_s": 2.0},
        parallel={"backbone": {"sharding": "full"}},
        debug={"fault": "faults:sleep_in_forward:colocated.1"},
    )
    with nothing_left():
        code, errors = Run(run).wait()
    assert code == 1
    assert "colocated.0" in errors
    assert "other backbone ranks did not come to this pass within flow.timeout_s=2 s" in errors
