"""Slabs of a device that streams hand over: order, waits, and the death of a producer."""

from __future__ import annotations

import gpu_peers
import pytest
import torch
from gpu_peers import DEVICE_SEGMENT, SLAB, hear, pattern, peer

from flowtrain_core import Consumer, Pool, Producer, StaleAddress

pytestmark = [pytest.mark.gpu, pytest.mark.limit(120)]


@pytest.fixture
def pool(pool: Pool, device: int) -> Pool:
    """The pool, with two slabs of 4 MiB on the device."""
    assert pool.add_segment(classes=[(SLAB, 2)], tier="device", device=device) == DEVICE_SEGMENT
    return pool


def test_a_stream_reads_what_another_wrote_before_the_slab_is_used_again(pool: Pool) -> None:
    producer, consumer = Producer(pool, segment=DEVICE_SEGMENT), Consumer(pool)
    writing, reading = torch.cuda.Stream(), torch.cuda.Stream()
    rounds = 32
    gathered = torch.zeros(rounds, SLAB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    items = []
    for key in range(rounds):
        lease = producer.lease((SLAB,), "uint8", timeout_s=30)
        with torch.cuda.stream(writing):
            torch.cuda._sleep(1_000_000)
            torch.from_dlpack(lease).fill_(key)
        lease.publish(key)
        items.append(consumer.get(timeout_s=30))
        with torch.cuda.stream(reading):
            gathered[key].copy_(torch.from_dlpack(items[-1]))
            torch.cuda._sleep(1_000_000)
        items[-1].release()
    torch.cuda.synchronize()
    for key, item in enumerate(items):
        item.confirm()
        assert torch.all(gathered[key] == key)


def test_a_stream_waits_for_a_stream_of_another_process(pool: Pool) -> None:
    stream = torch.cuda.Stream()
    with peer(gpu_peers.publish_late, pool.name, 0.5) as pipe:
        assert hear(pipe) == "submitted"
        item = Consumer(pool).get(timeout_s=30)
        with torch.cuda.stream(stream):
            data = torch.from_dlpack(item).clone()
        item.release()
        early = stream.query()
        pipe.send("finish")
        stream.synchronize()
        item.confirm()
        assert not early
        assert torch.equal(data, pattern(SLAB, 3))


def test_a_killed_producer_leaves_no_stream_waiting(pool: Pool) -> None:
    stream = torch.cuda.Stream()
    consumer = Consumer(pool)
    with peer(gpu_peers.publish_late, pool.name, 20.0) as pipe:
        assert hear(pipe) == "submitted"
        item = consumer.get(timeout_s=30)
        item.wait(stream.cuda_stream)
        item.release()
        early = stream.query()
        pipe.send("die")
        stream.synchronize()  # Ends by the recovery of this process's handle.
        assert not early
        with pytest.raises(StaleAddress, match="died before its stream"):
            item.confirm()
    leases = [
        Producer(pool, segment=DEVICE_SEGMENT).lease((SLAB,), "uint8", timeout_s=30)
        for _ in range(2)
    ]
    assert len(leases) == 2
