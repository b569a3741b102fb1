from __future__ import annotations

import multiprocessing
import os
import re
import resource
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy
import pytest

from flowtrain.events import Attempt, EventFile, EventsError, path_of, read_events, read_run
from flowtrain.events.file import sum_of


def opened(path: Path, *, number: int = 0, keep_steps: int = 1000) -> EventFile:
    attempt = Attempt(number=number, pid=1, clock_offset_ns=0)
    return EventFile(path, "encoder.0", attempt, keep_steps=keep_steps)


def put(file: EventFile, value: int, *, kind: int = 1) -> None:
    """Append an event that began and ended at `value`, and took 1 ns."""
    file.append(value, value, 1, 2, 3, value, -1, -1, file.attempt, 0, kind, 0, 0, 0)


def _write_on(path: Path, told: Connection) -> None:
    file = opened(path)
    for value in range(10**9):
        put(file, value)
        if value == 40_000:
            told.send("more than the file held at first")


def test_a_killed_rank_loses_no_event(tmp_path: Path) -> None:
    path = path_of(tmp_path, "encoder.0")
    ours, theirs = multiprocessing.Pipe()
    writer = multiprocessing.get_context("fork").Process(target=_write_on, args=(path, theirs))
    writer.start()
    assert ours.poll(30)
    # Read while it is written: what is there is whole.
    seen = read_events(path).records["step"]
    assert len(seen) > 40_000
    assert numpy.array_equal(seen, numpy.arange(len(seen)))
    assert writer.pid is not None
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    left = read_events(path)
    assert len(left.records) >= len(seen)
    assert numpy.array_equal(left.records["step"], numpy.arange(len(left.records)))
    # The next attempt goes on behind it.
    file = opened(path, number=1)
    put(file, 7)
    file.close()
    both = read_events(path)
    assert [attempt.number for attempt in both.attempts] == [0, 1]
    assert numpy.array_equal(both.records[:-1], left.records)
    assert (both.records[-1]["step"], both.records[-1]["attempt"]) == (7, 1)
    assert [rank.label for rank in read_run(tmp_path)] == ["encoder.0"]


def test_a_rank_of_an_earlier_attempt_leaves_the_file_of_the_next_alone(tmp_path: Path) -> None:
    path = tmp_path / "rank.events"
    before = opened(path, keep_steps=1)
    put(before, 1)
    after = opened(path, number=1)
    put(after, 2)
    # As a process that was stopped meanwhile: its file grows, drops old events, and is closed.
    for value in range(1 << 15):
        put(before, value)
    for step in range(9):
        before.step_ended(step)
    before.close()
    for value in range(1 << 15):
        put(after, value)  # Were the file shorter by now, this would end the process.
    after.close()
    found = read_events(path)
    assert found.records["step"][:2].tolist() == [1, 2]
    assert numpy.array_equal(found.records["step"][2:], numpy.arange(1 << 15))
    assert [attempt.number for attempt in found.attempts] == [0, 1]
    assert list(tmp_path.iterdir()) == [path]


def test_sums_are_kept_of_what_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "rank.events"
    file = opened(path, keep_steps=3)
    for step in range(100):
        for value in (2 * step, 2 * step + 1):
            put(file, value, kind=value % 3)
        file.step_ended(2 * step + 1)
    file.close()
    put(file, 200)  # By a reader that ends after its rank: it is dropped.
    events = read_events(path)
    kept = events.records["step"]
    # Of 3 to 6 steps, and the newest ones.
    assert 6 <= len(kept) <= 14
    assert numpy.array_equal(kept, numpy.arange(200 - len(kept), 200))
    total = sum_of(events.records, events.sums)
    assert total == {
        (0, 0, kind, 0): (n, n, 2 * n, 3 * n)
        for kind, n in enumerate(len(range(kind, 200, 3)) for kind in range(3))
    }
    assert path.stat().st_size < 1 << 17


def test_a_file_that_cannot_be_read_or_grow_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rank.events"
    path.write_bytes(b"FTEVENTS and no more")
    with pytest.raises(EventsError, match=rf"^{re.escape(str(path))}: not a file of events"):
        opened(path)
    path.unlink()
    file = opened(path)
    file.close()
    raw = bytearray(path.read_bytes())
    raw[8] = 9
    path.write_bytes(raw)
    with pytest.raises(EventsError, match=r"version 9 with records of 64 bytes, and this is ver"):
        read_events(path)
    path.unlink()
    file = opened(path)
    for value, kind in enumerate((1, 200)):
        put(file, value, kind=kind)
    file.close()
    with pytest.raises(EventsError, match=rf"{re.escape(str(path))}: record 1 has kind 200, and"):
        read_events(path)
    path.unlink()
    file = opened(path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, before[1]))
        with pytest.raises(OSError, match=re.escape(str(path))):
            for value in range(10**6):
                put(file, value)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    # What it held is still there.
    written = read_events(path).records["step"]
    assert numpy.array_equal(written, numpy.arange(len(written)))
    assert len(written) > 10_000


def _write_at_rate(path: Path, per_s: int, seconds: float) -> None:
    file = opened(path)
    start = time.monotonic()
    for value in range(int(per_s * seconds)):
        put(file, value)
        if value % 1000 == 0 and (ahead := value / per_s - (time.monotonic() - start)) > 0:
            time.sleep(ahead)
    file.close()


@pytest.mark.deep
@pytest.mark.limit(120)
def test_four_ranks_of_25_000_events_a_second_lose_none(tmp_path: Path) -> None:
    paths = [path_of(tmp_path, f"encoder.{number}") for number in range(4)]
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=_write_at_rate, args=(path, 25_000, 10)) for path in paths]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    for path in paths:
        assert numpy.array_equal(read_events(path).records["step"], numpy.arange(250_000))
