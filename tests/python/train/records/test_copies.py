"""A slab is published or released after its copy; events are gates that the tests open."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from flowtrain.train.records.copies import Copies
from flowtrain_core import (
    Consumer,
    Pool,
    PoolClosed,
    PoolTimeout,
    Producer,
    StaleAddress,
    ViewsAlive,
)


class OnDevice(torch.Tensor):
    """A tensor in host memory that claims to be on a device."""

    is_cuda = True


class Gate:
    """An event that is complete when the test opens it."""

    opened = threading.Event()

    def __init__(self, **_: Any) -> None: ...
    def record(self, _: object) -> None: ...
    def synchronize(self) -> None:
        assert self.opened.wait(30)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    opened = threading.Event()
    monkeypatch.setattr(Gate, "opened", opened)
    monkeypatch.setattr(torch.cuda, "Event", Gate)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: None)
    yield opened
    opened.set()


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool.create(f"test-copies-{os.getpid()}", classes=[(4096, 1)]) as pool:
        yield pool


def rows() -> torch.Tensor:
    return torch.arange(4.0).as_subclass(OnDevice)


def test_a_lease_is_published_only_when_its_copy_is_complete(
    pool: Pool, gate: threading.Event
) -> None:
    copies, consumer = Copies("test"), Consumer(pool)
    copies.publish(rows(), Producer(pool).lease((4,), "float32"), key=7)
    with pytest.raises(PoolTimeout):
        consumer.get(timeout_s=0.2)
    gate.set()
    with consumer.get(timeout_s=30) as item:
        assert item.key == 7
        assert torch.from_dlpack(item).tolist() == [0, 1, 2, 3]
    copies.drain()


def test_an_item_is_released_only_when_its_copy_is_complete(
    pool: Pool, gate: threading.Event
) -> None:
    copies, producer = Copies("test"), Producer(pool)
    lease = producer.lease((4,), "float32")
    torch.from_dlpack(lease).fill_(3.0)
    lease.publish(1)
    out = rows()
    copies.release(Consumer(pool).get(timeout_s=5), out)
    assert out.tolist() == [3, 3, 3, 3]
    with pytest.raises(PoolTimeout):
        producer.lease((4,), "float32", timeout_s=0.2)
    gate.set()
    copies.drain()
    producer.lease((4,), "float32", timeout_s=5).abort()


def test_slabs_of_a_device_wait_for_no_copy_and_are_confirmed_after_it(
    pool: Pool, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "from_dlpack", lambda _: rows())
    copies, producer = Copies("test"), Producer(pool)
    copies.publish(rows(), producer.lease((4,), "float32"), key=7)
    item = Consumer(pool).get(timeout_s=5)
    confirmed = []

    class Poisoned:
        def release(self) -> None:
            item.release()

        def confirm(self) -> None:
            confirmed.append(gate.is_set())
            raise StaleAddress("its producer died")

    copies.release(Poisoned(), rows())  # type: ignore[arg-type]
    producer.lease((4,), "float32", timeout_s=5).abort()  # The slab is released.
    threading.Timer(0.1, gate.set).start()
    with pytest.raises(StaleAddress):
        copies.confirm()
    assert confirmed == [True]
    copies.confirm()


def test_an_error_after_a_copy_is_raised_in_the_rank(pool: Pool, gate: threading.Event) -> None:
    copies = Copies("test")
    lease = Producer(pool).lease((4,), "float32")
    copies.publish(rows(), lease, key=1)
    with pytest.raises(ViewsAlive):
        lease.abort()  # The copy still writes the slab.
    pool.close()
    gate.set()
    with pytest.raises(PoolClosed):
        copies.drain()
