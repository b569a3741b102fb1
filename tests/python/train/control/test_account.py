from __future__ import annotations

import threading
import time

import pytest

from flowtrain.train.control.account import Account, busy
from flowtrain.train.control.activity import Activity


def test_kinds_sum_to_the_wall_clock() -> None:
    before = time.perf_counter()
    account = Account()
    started = time.perf_counter()
    with account.doing("encode"):
        time.sleep(0.05)
        with account.doing("send"), account.waiting():
            time.sleep(0.1)
    with pytest.raises(ValueError, match="stop"), account.doing("backbone"):
        raise ValueError("stop")
    time.sleep(0.05)
    ended = time.perf_counter()
    seconds = account.seconds()
    after = time.perf_counter()
    # Within both bounds no time is missing and none is counted twice, however late this test runs.
    rounding = 1e-9
    assert ended - started - rounding <= sum(seconds.values()) <= after - before + rounding
    assert seconds["wait_send"] >= 0.1
    assert seconds["encode"] >= 0.05 <= seconds["other"]
    assert account.cpu_seconds()["wait_send"] < 0.05


def test_other_threads_change_nothing() -> None:
    activity = Activity()

    def wait() -> None:
        with activity.working(), activity.waiting("a key"):
            time.sleep(0.05)

    with activity.account.doing("optimizer"):
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
    assert activity.account.seconds()["wait_other"] == 0
    assert activity.account.seconds()["optimizer"] >= 0.05


def test_busy_is_the_share_of_what_a_plain_loop_does_too() -> None:
    assert busy({"encode": 1.0, "backbone": 2.0, "wait_close": 1.0}) == 0.75
    assert busy({}) == 0
