"""Edges: limits of what is in flight, what happens at a limit, and explanations."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Literal

import pytest
from core.processes import Spawn, released

from flowtrain_core import (
    Consumer,
    Pool,
    PoolFull,
    PoolTimeout,
    Producer,
    edges,
    inspect,
)

Eventually = Callable[[Callable[[], object]], None]


def test_a_producer_that_does_not_wait_names_what_is_in_flight(pool: Pool) -> None:
    producer, consumer = Producer(pool, max_items=1, when_full="fail"), Consumer(pool)
    producer.lease((1000,), "uint8").publish(1)
    with pytest.raises(PoolFull) as caught:
        producer.lease((1000,), "uint8", timeout_s=3600)
    assert str(caught.value) == (
        f"pool '{pool.name}', ring 'default': no credit for a lease of 1000 bytes; 1 items of 1000 "
        "bytes are in flight, where max_items=1 and max_bytes=None; let a consumer release items, "
        f"raise the limits, or wait: when_full='block'; `flowtrain top {pool.name}` shows all lanes"
    )
    consumer.get().release()
    producer.lease((1000,), "uint8").abort()
    others = [Producer(pool).lease((1 << 20,), "uint8") for _ in range(2)]
    with pytest.raises(PoolFull, match="no slab for a lease of 1048576 bytes"):
        producer.lease((1 << 20,), "uint8")
    del others
    with pytest.raises(ValueError, match="when_full='drop' must be 'block' or 'fail'"):
        Producer(pool, when_full="drop")  # type: ignore[arg-type]


def test_items_that_the_first_segment_cannot_hold_spill_and_are_counted(
    name: str,
) -> None:
    with Pool.create(name, classes=[(4096, 1)]) as pool:
        first = pool.stats()["segments"][0]["id"]
        second, unused = (pool.add_segment(classes=[(8192, 2)]) for _ in range(2))
        producer, consumer = Producer(pool, segment=[second, first]), Consumer(pool)

        def lease(nbytes: int) -> int:
            lease = producer.lease((nbytes,), "uint8", timeout_s=0.0)
            lease.publish(0)
            return lease.address >> 40 & 0xFF

        assert [lease(10), lease(20), lease(30)] == [second, second, first]
        with pytest.raises(PoolTimeout, match="no slab"):  # Never a segment that is not named.
            lease(10)
        consumer.get().release()
        assert lease(5) == second
        [lane] = [lane for lane in inspect(name)["lanes"] if lane["role"] == "producer"]
        assert (lane["items_spilled"], lane["bytes_spilled"]) == (1, 30)
        limits = producer.explain().limits
        assert limits is not None
        assert (limits.spilled_items, limits.spilled_bytes) == (1, 30)
        assert [each.id for each in producer.explain().segments] == [second, first]
        for wrong in ([], [first, first], [first, 65], 0):
            with pytest.raises(ValueError, match="segment="):
                Producer(pool, segment=wrong)
        assert unused not in (first, second)


def test_a_strict_producer_raises_instead_of_spilling(name: str) -> None:
    with Pool.create(name, classes=[(4096, 1)]) as pool:
        second = pool.add_segment(classes=[(4096, 1)])
        producer = Producer(pool, segment=[1, second], strict=True, max_items=2)
        held = producer.lease((1,), "uint8")
        with pytest.raises(PoolFull, match="segment 1 has no slab.*strict=True forbids"):
            producer.lease((1,), "uint8", timeout_s=3600)
        held.abort()
        held = producer.lease((1,), "uint8")
        larger = pool.add_segment(bytes=1 << 16)
        with pytest.raises(ValueError, match="exceeds the largest slab of 4096"):
            Producer(pool, segment=[1, larger], strict=True).lease((5000,), "uint8")
        # Waiting for credit, or for the only segment, is not spilling.
        only = Producer(pool, segment=1, strict=True)
        with pytest.raises(PoolTimeout):
            only.lease((1,), "uint8", timeout_s=0.01)
        scarce = Producer(pool, segment=[second, 1], strict=True, max_items=1)
        kept = scarce.lease((1,), "uint8")
        with pytest.raises(PoolTimeout, match="no credit"):
            scarce.lease((1,), "uint8", timeout_s=0.01)
        del held, kept


def test_threads_that_share_a_strict_producer_wait_for_credit(name: str) -> None:
    with Pool.create(name, classes=[(64, 64)]) as pool:
        second = pool.add_segment(classes=[(64, 64)])
        producer = Producer(pool, segment=[1, second], strict=True, max_items=32)
        consumer = Consumer(pool)
        faults: list[PoolFull] = []
        end = time.monotonic() + 1.5

        def produce() -> None:
            while time.monotonic() < end and not faults:
                try:
                    producer.lease((1,), "uint8", 30).publish(1)
                except PoolFull as error:
                    faults.append(error)

        def consume() -> None:
            while any(thread.is_alive() for thread in threads[:6]):
                with contextlib.suppress(PoolTimeout):
                    for item in consumer.get_many(32, 0.02):
                        item.release()

        threads = [threading.Thread(target=each) for each in [produce] * 6 + [consume]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not faults


def test_the_credits_of_a_dead_consumer_return(pool: Pool, spawn: Spawn) -> None:
    producer = Producer(pool, max_items=2)
    for key in range(2):
        producer.lease((1,), "uint8").publish(key)
    reader = spawn(
        "pool = Pool.open(sys.argv[1]); c = Consumer(pool); items = [c.get(), c.get()]\n"
        "print('held'); sys.stdin.readline()",
        pool.name,
    )
    assert reader.line() == "held"
    with pytest.raises(PoolTimeout, match="no credit"):
        producer.lease((1,), "uint8", timeout_s=0.01)
    reader.kill()
    consumer = Consumer(pool)
    assert sorted(released(consumer.get() for _ in range(2))) == [0, 1]  # Delivered again.
    leases = [producer.lease((1,), "uint8") for _ in range(2)]
    limits = producer.explain().limits
    assert limits is not None
    assert limits.in_flight_items == len(leases)


def test_128_lanes_die_at_once_and_their_slabs_return(
    name: str, spawn: Spawn, eventually: Eventually
) -> None:
    with Pool.create(name, classes=[(64, 128)], max_lanes=256) as pool:
        producers = [Producer(pool, max_items=2) for _ in range(64)]
        for key in range(128):
            producers[key % 64].lease((1,), "uint8").publish(key)
        readers = [
            spawn(
                "pool = Pool.open(sys.argv[1]); ports = [Consumer(pool) for _ in range(63)]\n"
                "items = [port.get() for port in ports]\n"
                "print('held'); sys.stdin.readline()",
                name,
            )
            for _ in range(2)
        ]
        for reader in readers:
            assert reader.line() == "held"
        assert sum(lane.state == "alive" for lane in pool.lanes()) == 1 + 64 + 2 * 64
        for reader in readers:
            reader.kill()
        consumers = [Consumer(pool) for _ in range(50)]  # In the free lanes.
        got = released(consumers[i % 50].get(timeout_s=30) for i in range(128))
        assert sorted(got) == list(range(128))
        eventually(lambda: sum(lane.state == "dead" for lane in pool.lanes()) == 128)
        more = [Consumer(pool) for _ in range(100)]  # In lanes of dead processes.
        for producer in producers:
            producer.lease((1,), "uint8", timeout_s=0.0).abort()
        del more


def test_an_edge_explains_its_path_and_the_others(pool: Pool) -> None:
    producer, consumer = Producer(pool, max_bytes=1 << 20), Consumer(pool)
    assert producer.explain().bytes_per_s is None
    producer.lease((1000,), "uint8").publish(1)
    told = producer.explain(measure=True)
    assert told.path.name == "shared memory"
    against = {path.name: path.why for path in told.paths if not path.taken}
    assert set(against) == {"device memory", "registered shared memory", "another host"}
    assert all(against.values())
    assert [(each.tier, each.mapped, each.registered) for each in told.segments] == [
        ("host", True, False)
    ]
    assert told.limits is not None
    assert (told.limits.in_flight_bytes, told.limits.max_bytes) == (1000, 1 << 20)
    assert told.limits.max_items is None
    assert told.bytes_per_s is not None
    assert told.bytes_per_s > 0
    assert told.expected_bytes_per_s is not None
    text = str(told)
    for part in (
        f"producer 'main' (lane {told.lane}) of ring 'default'",
        "takes shared memory",
        "1000 bytes of 1048576; when full: block",
        "expected: ",
    ):
        assert part in text
    end = consumer.explain()
    assert (end.role, end.limits, end.bytes_per_s) == ("consumer", None, None)
    assert end.expected_bytes_per_s is None


def test_a_registered_pool_takes_the_registered_path() -> None:
    numbers = dict.fromkeys(("id", "bytes", "in_use_bytes", "unused_bytes"), 1)
    segment = numbers | {"owner": "", "mapped": True}
    segment |= {"tier": "host", "kind": "memfd", "device": ""}
    facts = {"pool": "p", "ring": "r", "label": "", "lane": 1, "strict": False}
    for registered, name in ((True, "registered shared memory"), (False, "shared memory")):
        facts["segments"] = [segment | {"registered": registered}]
        told = edges.explanation_of(facts, measure=False)
        assert told.path.name == name
        assert sum(path.taken for path in told.paths) == 1
        assert "''" not in str(told)  # Handles need no label.


@pytest.mark.parametrize("tiers", [("fake",), ("fake", "host"), ("host", "fake")])
def test_an_edge_takes_the_path_of_its_first_segment(
    name: str, tiers: tuple[Literal["fake", "host"], ...]
) -> None:
    with Pool.create(name) as pool:
        segments = [pool.add_segment(bytes=4096, tier=tier) for tier in tiers]
        told = Producer(pool, segment=segments).explain()
        taken = "shared memory" if tiers[0] == "host" else "device memory"
        assert [path.name for path in told.paths if path.taken] == [taken]
        if tiers[0] == "fake":
            where = "fake (fake, 66616b65-0000-0000-0000-000000000000)"
            assert told.path.why == f"segment 1 is in {where}"
