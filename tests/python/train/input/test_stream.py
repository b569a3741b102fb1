"""The order of a stream: which records it asks for, and which errors it raises when."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from flowtrain.data import DataError
from flowtrain.data.workers import WorkerPool
from flowtrain.train.input.reads import SampleReads
from flowtrain.train.input.stream import StreamOrder


class Reader:
    """Stands in for a `StreamReader`: reads at most 10 records at a time, up to an error."""

    def __init__(self, *, spooled: int = 0, fails_at: int = 1 << 30, wait_s: float = 0.0) -> None:
        self.spooled = spooled
        self.asked: list[tuple[int, int]] = []
        self._fails_at = fails_at
        self._wait_s = wait_s

    def read_until(self, sample: int, end: int) -> tuple[int, int]:
        time.sleep(self._wait_s)
        self.asked.append((sample, end))
        read = min(max(self.spooled, end), self.spooled + 10, self._fails_at)
        if read == sample < end:
            raise DataError(f"item {sample}: torn")
        self.spooled = max(self.spooled, read)
        return self.spooled, self.spooled // 4


def order_of(reader: Reader, *, timeout_s: float = 60.0, **start: int) -> StreamOrder:
    make: Callable[[], Any] = lambda: reader  # noqa: E731
    reads = SampleReads(WorkerPool(make, 0), "data.dataset=a:b", timeout_s=timeout_s)
    return StreamOrder(reads, batch=4, **start)


def test_only_the_records_that_the_run_needs_are_read() -> None:
    reader = Reader(spooled=33)
    order = order_of(reader, cursor=17)
    order.expect(57)
    assert [order.index(cursor) for cursor in range(17, 57)] == list(range(17, 57))
    assert reader.asked[0] == (17, 57)
    assert max(end for _, end in reader.asked) == 57 == reader.spooled
    # Samples that are dropped make more necessary.
    assert order.index(57) == 57
    assert (order.num_samples, order.draws_of_all) == (14, 28)


def test_an_error_of_a_read_ahead_is_raised_when_its_record_is_needed() -> None:
    order = order_of(Reader(fails_at=15))
    order.expect(40)
    assert [order.index(cursor) for cursor in range(15)] == list(range(15))
    while order._pending is not None and not order._pending.done():
        time.sleep(0.01)
    assert not order.is_ready(15)
    assert order.is_ready(14)
    for _ in range(2):
        with pytest.raises(DataError, match="item 15: torn"):
            order.index(15)


def test_a_stream_that_hangs_is_named() -> None:
    order = order_of(Reader(wait_s=5.0), timeout_s=0.2)
    with pytest.raises(
        DataError, match=r"^data\.dataset=a:b: sample 0: read_until 1: being read for"
    ):
        order.index(0)
