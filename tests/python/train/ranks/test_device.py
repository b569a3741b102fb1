"""Choice of a device, and when a record may be seen; events are gates that the tests open."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from flowtrain.train.ranks.device import Copies, DeviceError, choose_device
from flowtrain_core import Consumer, Pool, PoolClosed, PoolTimeout, Producer


def test_a_device_that_is_not_there_is_refused_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=r"model\.device=cpu"):
        choose_device("cuda", 0, first=0)


def test_ranks_beyond_the_devices_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert [choose_device("cuda", rank, first=1).index for rank in range(5)] == [1, 0, 1, 0, 1]
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert choose_device("cuda", 0, first=0).index == 1
    assert chosen == [1, 0, 1, 0, 1, 1]
    assert not torch.backends.cudnn.allow_tf32


class OnDevice(torch.Tensor):
    """A tensor of the host that says that it is on a device."""

    is_cuda = True


class Gate:
    """An event that is complete when the test says so."""

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
    with Pool.create(f"test-device-{os.getpid()}", classes=[(4096, 1)]) as pool:
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


def test_an_item_is_given_back_only_when_its_copy_is_complete(
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


def test_what_goes_wrong_behind_a_copy_is_the_ranks_error(
    pool: Pool, gate: threading.Event
) -> None:
    copies = Copies("test")
    lease = Producer(pool).lease((4,), "float32")
    copies.publish(rows(), lease, key=1)
    lease.abort()
    gate.set()
    with pytest.raises(PoolClosed):
        copies.drain()
