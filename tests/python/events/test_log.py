from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from flowtrain.events import (
    KINDS,
    TRACKS,
    WAITS,
    Attempt,
    EventFile,
    EventLog,
    busy,
    path_of,
    read_accounts,
    read_events,
    read_shares,
)
from flowtrain.schedule import Action

ATTEMPT = Attempt(number=0, pid=1, clock_offset_ns=10**9)


def attached(run: Path, label: str = "encoder.0", attempt: Attempt = ATTEMPT) -> EventLog:
    log = EventLog()
    log.attach(EventFile(path_of(run, label), label, attempt, keep_steps=10))
    return log


def test_kinds_of_activity_sum_to_the_wall_clock(tmp_path: Path) -> None:
    log = attached(tmp_path)
    before = time.perf_counter_ns()
    with log.span("run"):
        started = time.perf_counter_ns()
        log.begin_action(Action(3, "put", "encoder", 5, 1))
        log.count(4096)
        with log.waiting("slab"):
            time.sleep(0.03)
            inside = log.seconds()
        log.end()
        with pytest.raises(ValueError, match="stop"), log.span("plan", 4):
            raise ValueError("stop")
        time.sleep(0.02)
        ended = time.perf_counter_ns()
    after = time.perf_counter_ns()
    log.close()
    account = read_accounts(tmp_path)["encoder.0"]
    assert account.seconds == log.seconds()
    # Within both bounds no time is missing and none is counted twice, however late this test runs.
    assert ended - started <= round(sum(account.seconds.values()) * 1e9) <= after - before
    assert account.seconds["wait_send"] >= 0.03 <= inside["wait_send"]
    assert account.seconds["other"] >= 0.02 > account.cpu_seconds["wait_send"]
    assert before <= (account.started_at - 1) * 1e9 + 1e3 <= ended
    wait, put, plan, run = read_events(path_of(tmp_path, "encoder.0")).records
    names = [(TRACKS[e["track"]], KINDS[e["kind"]], WAITS[e["wait"]]) for e in (wait, put)]
    assert names == [("waits", "put", "slab"), ("actions", "put", "")]
    assert [tuple(e[["step", "index", "peer"]]) for e in (wait, put)] == [(3, 5, 1)] * 2
    assert put["bytes"] == 4096
    assert put["start_ns"] <= wait["start_ns"] <= wait["end_ns"] <= put["end_ns"]
    assert put["own_ns"] + wait["own_ns"] == put["end_ns"] - put["start_ns"]
    assert (plan["step"], run["step"]) == (4, -1)


def test_a_wait_that_is_over_at_once_is_work(tmp_path: Path) -> None:
    log = attached(tmp_path)
    with log.span("run"), log.span("log"):
        for _ in range(100):
            with log.waiting("store"):
                pass
        with log.waiting("store"):
            time.sleep(0.001)
    log.close()
    records = read_events(path_of(tmp_path, "encoder.0")).records
    # A loaded machine may make some of the hundred longer than that.
    assert 3 <= len(records) < 60
    assert log.seconds()["wait_log"] >= 0.001


def test_other_threads_record_what_they_are_told_to(tmp_path: Path) -> None:
    log = attached(tmp_path)

    def other() -> None:
        with log.span("checkpoint"), log.waiting("store"):
            time.sleep(0.02)
        log.add("planner", "planned", 1, 5, cpu_ns=3, step=7)

    with log.span("run"), log.span("log"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    log.close()
    assert log.seconds()["log"] >= 0.02
    assert log.seconds()["checkpoint"] == log.seconds()["wait_log"] == 0
    assert read_accounts(tmp_path)["encoder.0"].planner_cpu_seconds == 3e-9


def test_shares_are_those_of_the_last_steps_of_the_last_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0
    monkeypatch.setattr("flowtrain.events.log.perf_counter_ns", lambda: now)
    for number in range(2):
        for label in ("backbone.0", "backbone.1", "encoder.0")[number:]:
            log = attached(tmp_path, label, Attempt(number=number, pid=1, clock_offset_ns=0))
            for step in range(4):
                log.begin_action(Action(step, "forward", "backbone", 0))
                now += 10**8 if step < 2 else 10**6
                log.end()
                log.begin_action(Action(step, "forget"))
                log.end()
            log.close()
    found = read_shares(tmp_path, steps=2)
    # The first backbone rank is not of the last attempt.
    assert found.keys() == {"backbone", "encoder"}
    for seconds in found.values():
        assert seconds == {"backbone": 0.002, "plan": 0.0}


def test_busy_is_the_share_of_what_a_plain_loop_does_too() -> None:
    assert busy({"encode": 1.0, "backbone": 2.0, "wait_exchange": 1.0}) == 0.75
    assert busy({}) == 0
