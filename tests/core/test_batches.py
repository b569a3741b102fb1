"""Batches of items: in order, all or none, and redelivered after the death of their consumer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from core.processes import Spawn, released

from flowtrain_core import Consumer, Pool, PoolClosed, PoolTimeout, Producer


@pytest.fixture
def slabs(name: str) -> Iterator[Pool]:
    with Pool.create(name, classes=[(4096, 40)]) as pool:
        yield pool


def keys_of(consumer: Consumer, most: int) -> list[int]:
    return released(consumer.get_many(most, timeout_s=30))


def test_batches_are_taken_in_order_whatever_their_sizes(slabs: Pool) -> None:
    producer, consumer = Producer(slabs), Consumer(slabs)
    sent = 0
    taken: list[int] = []
    for count in (1, 7, 16, 2, 30, 5):
        leases = [producer.lease((8,), "uint8") for _ in range(count)]
        leases = leases[::2] + leases[1::2]  # Slabs that are not all consecutive.
        for i, lease in enumerate(leases):
            memoryview(lease)[:] = bytes([sent + i] * 8)
        producer.publish_many(leases, range(sent, sent + count))
        sent += count
        while len(taken) < sent - 2:  # Two stay in the ring, for the next batch.
            items = consumer.get_many(min(6, sent - 2 - len(taken)))
            assert len(items) <= 6
            for item in items:
                assert bytes(memoryview(item)) == bytes([item.key] * 8)
                taken.append(item.key)
                item.release()
    taken += keys_of(consumer, 10)
    assert taken == list(range(sent))
    stats = slabs.stats()
    assert (stats["items_published"], stats["items_taken"], stats["items_released"]) == (sent,) * 3
    with pytest.raises(PoolTimeout):
        consumer.get_many(1, timeout_s=0)


def test_a_batch_with_a_bad_lease_publishes_nothing(slabs: Pool) -> None:
    producer, other, consumer = Producer(slabs), Producer(slabs), Consumer(slabs)
    first, second = (producer.lease((1,), "uint8") for _ in range(2))
    foreign = other.lease((1,), "uint8")
    gone = producer.lease((1,), "uint8")
    gone.abort()
    with pytest.raises(ValueError, match=r"leases\[1\] is of another producer"):
        producer.publish_many([first, foreign], [1, 2])
    with pytest.raises(PoolClosed, match=r"leases\[1\] was published or aborted"):
        producer.publish_many([first, gone], [1, 2])
    with pytest.raises(ValueError, match=r"leases\[2\] is leases\[0\]; give each once"):
        producer.publish_many([first, second, first], [1, 2, 3])
    with pytest.raises(ValueError, match="2 leases and 1 keys"):
        producer.publish_many([first, second], [1])
    with pytest.raises(ValueError, match="max_items=0"):
        consumer.get_many(0)
    assert consumer.try_get() is None
    producer.publish_many([second, first], [3, 4])
    with pytest.raises(PoolClosed):
        first.publish(5)
    assert keys_of(consumer, 9) == [3, 4]


def test_a_batch_counts_against_the_credit_of_its_producer(slabs: Pool) -> None:
    producer, consumer = Producer(slabs, max_items=3), Consumer(slabs)
    producer.publish_many([producer.lease((1,), "uint8") for _ in range(3)], range(3))
    with pytest.raises(PoolTimeout, match="max_items=3"):
        producer.lease((1,), "uint8", timeout_s=0)
    assert keys_of(consumer, 2) == [0, 1]
    producer.publish_many([producer.lease((1,), "uint8") for _ in range(2)], range(3, 5))
    with pytest.raises(PoolTimeout, match="max_items=3"):
        producer.lease((1,), "uint8", timeout_s=0)


def test_the_items_of_a_killed_consumer_of_a_batch_are_delivered_again(
    slabs: Pool, spawn: Spawn
) -> None:
    producer = Producer(slabs)
    producer.publish_many([producer.lease((1,), "uint8") for _ in range(8)], range(8))
    holder = spawn(
        "pool = Pool.open(sys.argv[1]); items = Consumer(pool).get_many(5)\n"
        "items[1].release(); print(len(items)); sys.stdin.readline()",
        slabs.name,
    )
    assert holder.line() == "5"
    holder.kill()
    consumer = Consumer(slabs)
    found: dict[int, int] = {}
    while len(found) < 7:
        for item in consumer.get_many(8, timeout_s=30):
            assert item.key not in found
            found[item.key] = item.attempt
            item.release()
    assert found == {0: 1, 2: 1, 3: 1, 4: 1, 5: 0, 6: 0, 7: 0}
