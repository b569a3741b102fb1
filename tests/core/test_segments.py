"""Memory of a pool: classes of slabs, slabs that are cut as they are asked for, growth and end."""

from __future__ import annotations

import time

import pytest

from flowtrain_core import (
    Consumer,
    Pool,
    PoolSpace,
    PoolTimeout,
    Producer,
)


def test_a_pool_without_memory_says_how_to_get_some(name: str) -> None:
    with Pool.create(name) as pool, pytest.raises(PoolSpace, match="add_segment"):
        Producer(pool).lease((1,), "uint8")


def test_cells_lanes_and_segments_run_out_with_a_way_out(name: str) -> None:
    with Pool.create(name, max_cells=8, max_lanes=3) as pool:
        with pytest.raises(PoolSpace, match="9 slabs.*max_cells=8.*raise max_cells"):
            pool.add_segment(classes=[(64, 9)])
        pool.add_segment(classes=[(64, 8)])
        producers = [Producer(pool), Producer(pool)]
        with pytest.raises(PoolSpace, match="all 3 lanes are taken; raise max_lanes"):
            Consumer(pool)
        producers.pop()
        Consumer(pool)


def test_a_segment_that_grows_uses_the_room_it_had(name: str) -> None:
    with Pool.create(name, max_cells=30) as pool, Pool.open(name) as other:
        mine, theirs = pool.add_segment(classes=[(64, 1)]), other.add_segment(classes=[(64, 1)])
        for slabs in range(2, 11):
            pool.drop_segment(mine)
            mine = pool.add_segment(classes=[(64, slabs)])
            other.drop_segment(theirs)
            theirs = other.add_segment(classes=[(64, slabs)])
        with pytest.raises(PoolSpace, match="10 of max_cells=30 cells are free; raise max_cells"):
            pool.add_segment(classes=[(64, 11)])
        small = [pool.add_segment(classes=[(64, 1)]) for _ in range(10)]
        pool.drop_segment(small[3])
        pool.drop_segment(small[8])
        with pytest.raises(PoolSpace, match="2 of max_cells=30 .* but only 1 in a row"):
            pool.add_segment(classes=[(64, 2)])
    with Pool.create(name) as pool:
        for _ in range(64):
            pool.add_segment(classes=[(64, 1)])
        with pytest.raises(PoolSpace, match="all 64 segments are taken; drop a segment"):
            pool.add_segment(classes=[(64, 1)])


def test_memory_without_classes_is_cut_as_it_is_asked_for(name: str) -> None:
    with Pool.create(name, bytes=64 << 20, prefault=False) as pool:
        producer = Producer(pool)

        def fill(size: int) -> int:
            leases = []
            try:
                while True:
                    leases.append(producer.lease((size,), "uint8", timeout_s=0.0))
            except PoolTimeout:
                assert len({lease.address for lease in leases}) == len(leases)
                return len(leases)

        # All of it for one size, then, once nothing is in use, all of it for another.
        assert fill(4 << 20) == 16
        assert fill(9 << 20) == 7
        assert fill(64 << 20) == 1
        assert fill(1 << 16) == 1024
        kept = producer.lease((1,), "uint8")
        with pytest.raises(PoolTimeout):
            producer.lease((64 << 20,), "uint8", timeout_s=0.01)
        kept.abort()
        producer.lease((64 << 20,), "uint8", timeout_s=0.0).abort()
        with pytest.raises(ValueError, match="exceeds the largest slab of 67108864 bytes"):
            producer.lease(((64 << 20) + 1,), "uint8")


def test_a_slab_given_back_is_used_again_before_more_is_cut(name: str) -> None:
    with Pool.create(name, bytes=1 << 20) as pool:
        producer = Producer(pool)
        addresses = set()
        for _ in range(100):
            lease = producer.lease((5000,), "uint8", timeout_s=0.0)
            addresses.add(lease.address)
            lease.abort()
        assert len(addresses) == 1


def test_a_dropped_segment_keeps_what_is_in_use_and_then_gives_its_memory_back(name: str) -> None:
    with Pool.create(name, bytes=1 << 20) as pool:
        [first] = pool.stats()["segments"]
        producer = Producer(pool)
        producer.lease((8,), "uint8").publish(7)
        second = pool.add_segment(classes=[(4096, 2)])
        pool.drop_segment(first["id"])
        assert producer.lease((1,), "uint8", timeout_s=0.0).address >> 40 & 0xFF == second
        item = Consumer(pool).get(timeout_s=1.0)
        assert item.key == 7
        item.release()
        # The next sweep sees that nothing of it is in use.
        deadline = time.monotonic() + 10
        while len(pool.stats()["segments"]) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(ValueError, match="segment 1 is not one that this handle added"):
            pool.drop_segment(first["id"])
