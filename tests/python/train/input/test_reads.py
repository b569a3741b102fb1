"""Slow readers are waited for; if a reader hangs, its sample is named."""

from __future__ import annotations

import errno
import importlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from flowtrain.data.calls import Call
from flowtrain.data.errors import DataError
from flowtrain.data.workers import WorkerPool
from flowtrain.train.input.reads import SampleReads

DATA = Path("/data/train.jsonl")


class Slow:
    """Reads a text each time that the test lets it, and pixels when the test ends."""

    turns: threading.Semaphore
    reading: threading.Event
    gate: threading.Event

    def text(self, line: int) -> int:
        self.turns.acquire()
        return line

    def pixels(self, line: int, image: int, grid: tuple[int, int, int]) -> None:
        self.reading.set()
        self.gate.wait()


@pytest.fixture
def slow() -> Iterator[WorkerPool]:
    Slow.turns = threading.Semaphore(0)
    Slow.reading, Slow.gate = threading.Event(), threading.Event()
    with WorkerPool(Slow, 0) as reader:
        yield reader
        Slow.gate.set()
        Slow.turns.release()


def test_readers_that_finish_one_read_after_another_are_waited_for(
    slow: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    periods = itertools.count(1)

    def wait(read: Call, _: float) -> bool:
        """Let a read finish in one period of seven; eight are the timeout."""
        if next(periods) % 7 == 0:
            finished = slow.finished
            Slow.turns.release()
            while slow.finished == finished:
                time.sleep(0.001)
        return read.done()

    monkeypatch.setattr(Call, "wait", wait)
    reads = SampleReads(slow, DATA, timeout_s=0.8)
    *_, last = [reads.submit("text", line) for line in range(6)]
    assert reads.result(last) == 5


def test_a_read_that_hangs_is_named_and_not_a_read_that_is_queued_behind_it(
    slow: WorkerPool,
) -> None:
    reads = SampleReads(slow, DATA, timeout_s=0.2)
    reads.submit("pixels", 5, 1, (1, 2, 2))
    behind = reads.submit("text", 6)
    assert Slow.reading.wait(60)
    with pytest.raises(DataError) as caught:
        reads.result(behind)
    assert str(caught.value).startswith(
        f"{DATA}: sample 5: pixels 1 (1, 2, 2): being read for more than flow.timeout_s=0.2 s"
    )
    assert "raise flow.timeout_s" in str(caught.value)


def test_a_reader_process_that_dies_is_an_error_of_the_sample() -> None:
    with WorkerPool(partial(importlib.import_module, "os"), 1) as reader:
        reads = SampleReads(reader, DATA, timeout_s=60)
        with pytest.raises(DataError, match=r"train.jsonl: sample 3: _exit: .*process"):
            reads.result(reads.submit("_exit", 3))


def start_slowly() -> ModuleType:
    time.sleep(1.0)
    return os


@pytest.mark.parametrize("workers", [0, 1])
def test_the_timeout_of_a_read_does_not_include_the_start_of_its_reader(workers: int) -> None:
    with WorkerPool(start_slowly, workers) as reader:
        reads = SampleReads(reader, DATA, timeout_s=0.9)
        assert reads.result(reads.submit("strerror", errno.ENOENT)) == "No such file or directory"


STOPPED_RANK = """
import time
from pathlib import Path
from flowtrain.data.workers import WorkerPool
from flowtrain.train.input.reads import SampleReads

class Reader:
    def text(self, line):
        print("reading", flush=True)
        for _ in range(8):
            time.sleep(0.1)

with WorkerPool(Reader, 0) as reader:
    reads = SampleReads(reader, Path("train.jsonl"), timeout_s=2.0)
    reads.result(reads.submit("text", 0))
"""


def test_a_rank_that_was_stopped_during_a_read_continues() -> None:
    with subprocess.Popen([sys.executable, "-c", STOPPED_RANK], stdout=subprocess.PIPE) as rank:
        try:
            assert rank.stdout is not None
            assert rank.stdout.readline() == b"reading\n"
            os.kill(rank.pid, signal.SIGSTOP)
            time.sleep(2.5)
            os.kill(rank.pid, signal.SIGCONT)
            assert rank.wait() == 0
        finally:
            rank.kill()
