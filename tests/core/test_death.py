"""Processes killed or stopped: what they held is reclaimed, and handles report deaths."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from core.processes import Spawn, in_use

from flowtrain_core import Consumer, Gateway, Pool, PoolClosed, PoolSpace, PoolTimeout, Producer

Eventually = Callable[[Callable[[], object]], None]


def test_the_slab_of_a_killed_producer_is_freed(
    pool: Pool, spawn: Spawn, eventually: Eventually
) -> None:
    holder = spawn(
        "pool = Pool.open(sys.argv[1]); lease = Producer(pool).lease((9,), 'uint8')\n"
        "print('leased'); sys.stdin.readline()",
        pool.name,
    )
    assert holder.line() == "leased"
    assert in_use(pool) == 1
    holder.kill()
    eventually(lambda: in_use(pool) == 0)
    assert pool.stats()["redelivered"] == 0


def test_the_item_of_a_killed_consumer_is_delivered_again(pool: Pool, spawn: Spawn) -> None:
    Producer(pool).lease((9,), "uint8").publish(77)
    for attempt in range(3):
        holder = spawn(
            "pool = Pool.open(sys.argv[1]); item = Consumer(pool).get()\n"
            "print(item.key, item.attempt); sys.stdin.readline()",
            pool.name,
        )
        assert holder.line() == f"77 {attempt}"
        holder.kill()
    item = Consumer(pool).get(timeout_s=30)
    assert (item.key, item.attempt) == (77, 3)
    item.release()
    assert in_use(pool) == 0


def test_a_waiting_producer_is_woken_by_the_death_of_the_holder(pool: Pool, spawn: Spawn) -> None:
    holder = spawn(
        "pool = Pool.open(sys.argv[1]); p = Producer(pool)\n"
        "leases = [p.lease((1 << 20,), 'uint8') for _ in range(2)]\n"
        "print('leased'); sys.stdin.readline()",
        pool.name,
    )
    assert holder.line() == "leased"
    with pytest.raises(PoolTimeout):
        Producer(pool).lease((1 << 20,), "uint8", timeout_s=0.01)
    holder.kill()
    Producer(pool).lease((1 << 20,), "uint8", timeout_s=30).abort()


def test_each_death_is_reported_once_and_a_clean_end_never(pool: Pool, spawn: Spawn) -> None:
    code = (
        "pool = Pool.open(sys.argv[1], label=sys.argv[2]); c = Consumer(pool)\n"
        "print('up'); sys.stdin.readline()"
    )
    clean, killed = spawn(code, pool.name, "reader.0"), spawn(code, pool.name, "reader.1")
    assert clean.line() == killed.line() == "up"
    watcher = Pool.open(pool.name)
    clean.tell()
    clean.wait()
    killed.kill()
    for handle in (pool, watcher):
        dead = handle.wait_dead(timeout_s=30)
        assert dead is not None
        assert (dead.label, dead.role, dead.pid) == ("reader.1", "pool", killed.popen.pid)
        assert handle.wait_dead(timeout_s=0.2) is None
    states = {(lane.label, lane.state) for lane in pool.lanes() if lane.role == "pool"}
    assert states >= {("main", "alive"), ("reader.0", "left"), ("reader.1", "dead")}
    late = Pool.open(pool.name)
    assert late.wait_dead(timeout_s=0.2) is None  # That death was before it joined.


def test_items_of_a_dead_owner_stay_readable_and_its_entry_is_reused(
    name: str, spawn: Spawn, eventually: Eventually
) -> None:
    code = (
        "pool = Pool.open(sys.argv[1], label='encoder.0')\n"
        "segment = pool.add_segment(classes=[(4096, 3)])\n"
        "p = Producer(pool, segment=segment)\n"
        "lease = p.lease((5,), 'uint8'); memoryview(lease)[:] = b'stays'; lease.publish(1)\n"
        "print(segment); sys.stdin.readline()"
    )
    with Pool.create(name, max_cells=5, label="main") as pool:
        consumer = Consumer(pool)
        first = spawn(code, name)
        segment = int(first.line())
        item = consumer.get()  # Mapped from here on.
        view = memoryview(item)
        first.kill()
        dead = pool.wait_dead(timeout_s=30)
        assert dead is not None
        with pytest.raises(PoolSpace, match="its owner is gone"):
            Producer(pool).lease((1,), "uint8")
        assert bytes(view) == b"stays"
        # Two cells are free and three are needed, so the dead owner's are reused later.
        with pytest.raises(PoolSpace, match="max_cells=5"):
            pool.add_segment(classes=[(4096, 3)])
        del view
        old = item.address
        item.release()
        eventually(lambda: pool.stats()["segments"] == [])
        second = spawn(code, name)
        assert int(second.line()) == segment
        with consumer.get() as item:
            assert bytes(memoryview(item)) == b"stays"
            assert item.address >> 48 == (old >> 48) + 1  # Same place, next generation.
        assert pool.lost() == 0


def test_a_stopped_process_keeps_what_it_holds(pool: Pool, spawn: Spawn) -> None:
    Producer(pool).lease((9,), "uint8").publish(5)
    holder = spawn(
        "pool = Pool.open(sys.argv[1]); c = Consumer(pool); item = c.get()\n"
        "print('held'); sys.stdin.readline()\n"
        "print(item.key); item.release(); print('released')",
        pool.name,
    )
    assert holder.line() == "held"
    holder.stop()
    assert pool.wait_dead(timeout_s=0.5) is None
    assert Consumer(pool).try_get() is None
    holder.popen.send_signal(signal.SIGCONT)
    holder.tell()
    assert (holder.line(), holder.line()) == ("5", "released")


def test_a_stopped_owner_delays_no_other_memory_and_loses_nothing(name: str, spawn: Spawn) -> None:
    with Pool.create(name, classes=[(4096, 2)]) as pool:
        owner = spawn(
            "pool = Pool.open(sys.argv[1], label='owner')\n"
            "segment = pool.add_segment(classes=[(8192, 1)])\n"
            "Producer(pool, segment=segment).lease((4,), 'uint8').publish(1)\n"
            "print('published'); sys.stdin.readline()",
            name,
        )
        assert owner.line() == "published"
        owner.stop()
        unanswered = rf"owner 'owner' \(pid {owner.popen.pid}\) has not answered"
        with Pool.open(name) as late:
            consumer, producer = Consumer(late), Producer(late)
            assert consumer.try_get() is None
            with pytest.raises(PoolTimeout, match=unanswered):
                consumer.get(timeout_s=0.05)
            with pytest.raises(PoolTimeout, match=unanswered):
                consumer.get_many(2, timeout_s=0.05)
            Producer(pool).lease((1,), "uint8").publish(2)
            with consumer.get(timeout_s=30) as item:
                assert item.key == 2
            held = [producer.lease((1,), "uint8", timeout_s=30) for _ in range(2)]
            with pytest.raises(PoolTimeout, match=unanswered):
                producer.lease((1,), "uint8", timeout_s=0.05)
            owner.popen.send_signal(signal.SIGCONT)
            with consumer.get(timeout_s=30) as item:
                assert (item.key, item.attempt) == (1, 0)
            assert late.lost() == 0
            del held


def test_a_closed_handle_is_not_dead(name: str) -> None:
    with Pool.create(name) as pool:
        Pool.open(name, label="left").close()
        assert [lane.state for lane in pool.lanes()] == ["alive", "left"]
        with pytest.raises(PoolClosed):
            closed = Pool.open(name)
            closed.close()
            closed.stats()
        assert pool.wait_dead(timeout_s=0.1) is None


def test_a_guest_that_died_is_dead_at_once(pool: Pool) -> None:
    gateway = Gateway(pool, interface="127.0.0.1")
    lane = gateway.add_guest("encoder.1", 77)
    gateway.remove_guest(lane, died=True)
    assert [each.state for each in pool.lanes() if each.index == lane] == ["dead"]
    dead = pool.wait_dead(timeout_s=30)
    assert dead is not None and (dead.label, dead.pid) == ("encoder.1", 77)
    gateway.close()
