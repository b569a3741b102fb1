"""Items that end up smaller than their lease: what readers see, and what returns to the pool."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy
import pytest
from core.processes import Spawn, in_use

from flowtrain_core import (
    Consumer,
    Pool,
    PoolClosed,
    PoolFull,
    Producer,
    ViewsAlive,
    inspect,
)

Eventually = Callable[[Callable[[], object]], None]
PAGE = 4096


def test_readers_see_the_shape_and_the_bytes_of_a_shrunk_item(pool: Pool) -> None:
    producer, consumer = Producer(pool), Consumer(pool)
    leases = [producer.lease((8, 4), "float32") for _ in range(3)]
    for lease, rows in zip(leases, (5, 0, 8), strict=True):
        numpy.asarray(lease)[:] = numpy.arange(32).reshape(8, 4)
        lease.shrink((rows, 4))
        assert (lease.shape, lease.nbytes) == ((rows, 4), rows * 16)
    producer.publish_many(leases, [5, 0, 8])
    assert inspect(pool.name)["rings"][0]["bytes"] == pool.stats()["bytes_published"] == 13 * 16
    for item in consumer.get_many(3):
        assert (item.shape, item.nbytes) == ((item.key, 4), item.key * 16)
        for view in (numpy.asarray(item), numpy.from_dlpack(item)):
            numpy.testing.assert_array_equal(view, numpy.arange(item.key * 4).reshape(-1, 4))
        del view
        item.release()
    lease = producer.lease((8, 4), "float32")
    lease.shrink((2, 2, 2))
    lease.write(numpy.ones(8, "float32"))  # The source has the new size.
    lease.publish(1)
    with consumer.get() as item:
        assert numpy.asarray(item).tolist() == numpy.ones((2, 2, 2)).tolist()


def test_a_lease_grows_never_and_shrinks_only_while_nobody_uses_it(pool: Pool) -> None:
    lease = Producer(pool).lease((4, 4), "float32")
    with pytest.raises(ValueError, match="shape of 80 bytes exceeds the lease of 64 bytes"):
        lease.shrink((5, 4))
    with memoryview(lease), pytest.raises(ViewsAlive, match="before shrink"):
        lease.shrink((1, 4))
    assert lease.shape == (4, 4)
    lease.shrink((2, 4))
    with pytest.raises(ValueError, match="shape of 64 bytes exceeds the lease of 32 bytes"):
        lease.shrink((4, 4))
    lease.publish(1)
    with pytest.raises(PoolClosed, match="published or aborted"):
        lease.shrink((1, 4))
    with Consumer(pool).get() as item:
        assert item.shape == (2, 4)


def test_memory_beyond_a_shrunk_item_goes_to_a_producer_that_waits_for_it(name: str) -> None:
    with Pool.create(name, bytes=16 * PAGE) as pool, Pool.open(name) as other:
        whole = Producer(pool).lease((16 * PAGE,), "uint8")
        numpy.asarray(whole)[:] = 1
        found: list[int] = []

        def lease_the_rest() -> None:
            lease = Producer(other).lease((12 * PAGE,), "uint8", timeout_s=30)
            numpy.asarray(lease)[:] = 2
            found.append(lease.nbytes)

        waiting = threading.Thread(target=lease_the_rest)
        waiting.start()
        whole.shrink((3 * PAGE + 1,))  # Four pages.
        waiting.join()
        assert found == [12 * PAGE]
        (segment,) = pool.stats()["segments"]
        assert (segment["in_use_bytes"], segment["unused_bytes"]) == (4 * PAGE, PAGE - 1)
        whole.publish(1)
        with Consumer(other).get() as item:
            assert bytes(memoryview(item)) == bytes([1]) * (3 * PAGE + 1)


def test_credit_beyond_a_shrunk_item_returns_before_its_release(pool: Pool) -> None:
    producer = Producer(pool, max_bytes=100, when_full="fail")
    lease = producer.lease((100,), "uint8")
    with pytest.raises(PoolFull, match="100 bytes are in flight"):
        producer.lease((1,), "uint8")
    lease.shrink((40,))
    lease.publish(1)
    producer.lease((60,), "uint8").publish(2)
    limits = producer.explain().limits
    assert limits is not None
    assert (limits.in_flight_items, limits.in_flight_bytes) == (2, 100)
    with pytest.raises(PoolFull):
        producer.lease((1,), "uint8")
    Consumer(pool).get().release()
    producer.lease((40,), "uint8").abort()


def test_a_slab_of_a_class_keeps_its_size_and_shows_what_is_unused(pool: Pool) -> None:
    producer = Producer(pool)
    lease = producer.lease((1 << 20,), "uint8")
    assert pool.stats()["segments"][0]["unused_bytes"] == 0
    lease.shrink((1000,))
    lease.publish(1)
    item = Consumer(pool).get()
    for segment in (pool.stats()["segments"][0], inspect(pool.name)["segments"][0]):
        assert (segment["in_use_bytes"], segment["unused_bytes"]) == (1 << 20, (1 << 20) - 1000)
    assert f"({(1 << 20) - 1000} of them beyond items)" in str(producer.explain())
    item.release()
    assert pool.stats()["segments"][0]["unused_bytes"] == 0


def test_the_whole_memory_of_a_producer_killed_after_it_shrank_is_freed(
    name: str, spawn: Spawn, eventually: Eventually
) -> None:
    with Pool.create(name, bytes=16 * PAGE) as pool:
        holder = spawn(
            "pool = Pool.open(sys.argv[1]); p = Producer(pool)\n"
            "kept = [p.lease((8 * 4096,), 'uint8') for _ in range(2)]\n"
            "for lease in kept: lease.shrink((4096,))\n"
            "print('shrunk'); sys.stdin.readline()",
            name,
        )
        assert holder.line() == "shrunk"
        producer = Producer(pool)
        between = producer.lease((7 * PAGE,), "uint8", timeout_s=0)
        holder.kill()
        eventually(lambda: in_use(pool) == 1)
        between.abort()
        producer.lease((16 * PAGE,), "uint8", timeout_s=0).abort()
