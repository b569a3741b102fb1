from __future__ import annotations

import time

import pytest

from flowtrain.events import clock_offset_ns


def test_a_process_that_stops_between_two_readings_knows_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Time before each reading, in ns: long for most pairs, on either side of that of unix time.
    delays = [100, 100, 5_000_000, 100, 100, 100, 100, 7_000_000, 100] * 6
    now = 10**12

    def read(offset: int) -> int:
        nonlocal now
        now += delays.pop(0)
        return now + offset

    offset = 1_800_000_000 * 10**9
    monkeypatch.setattr(time, "perf_counter_ns", lambda: read(0))
    monkeypatch.setattr(time, "time_ns", lambda: read(offset))
    assert clock_offset_ns() == offset
