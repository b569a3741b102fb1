"""Processes killed at any moment: nothing is lost, nothing leaks, and somebody is told."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from core.processes import Process, Spawn

from flowtrain_core import Consumer, Pool, PoolClosed, PoolSpace, PoolTimeout, Producer

Eventually = Callable[[Callable[[], object]], None]


def in_use(pool: Pool) -> int:
    return sum(segment["in_use_slabs"] for segment in pool.stats()["segments"])


def test_a_killed_producer_gives_its_slab_back(
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


def test_a_killed_consumer_has_its_item_delivered_again(pool: Pool, spawn: Spawn) -> None:
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


def test_a_sleeping_producer_is_woken_by_the_death_of_who_held_the_space(
    pool: Pool, spawn: Spawn
) -> None:
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


def test_deaths_are_told_once_by_label_and_clean_ends_are_not(pool: Pool, spawn: Spawn) -> None:
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
    assert late.wait_dead(timeout_s=0.2) is None  # From before its time.


def test_what_a_dead_owner_published_stays_readable_and_its_memory_is_used_again(
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
        item = consumer.get()  # Mapped from here on; a second item is still in the ring.
        view = memoryview(item)
        first.kill()
        dead = pool.wait_dead(timeout_s=30)
        assert dead is not None
        with pytest.raises(PoolSpace, match="its owner is gone"):
            Producer(pool).lease((1,), "uint8")
        assert bytes(view) == b"stays"
        # Two cells are left, and three are needed: only those of the dead can be had, later.
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


def test_items_whose_memory_died_unmapped_are_counted_and_the_rest_comes(
    name: str, spawn: Spawn
) -> None:
    with Pool.create(name, classes=[(4096, 1)]) as pool:
        owner = spawn(
            "pool = Pool.open(sys.argv[1]); segment = pool.add_segment(classes=[(4096, 2)])\n"
            "p = Producer(pool, segment=segment)\n"
            "for key in range(2): p.lease((1,), 'uint8').publish(key)\n"
            "print('published'); sys.stdin.readline()",
            name,
        )
        assert owner.line() == "published"
        owner.kill()
        assert pool.wait_dead(timeout_s=30) is not None
        Producer(pool).lease((1,), "uint8").publish(9)
        late = spawn(
            "pool = Pool.open(sys.argv[1]); item = Consumer(pool).get()\n"
            "print(item.key, pool.lost())",
            name,
        )
        assert late.line() == "9 2"


def test_a_stopped_process_is_never_stolen_from(pool: Pool, spawn: Spawn) -> None:
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


def test_an_owner_that_is_stopped_holds_up_nobody_and_loses_nothing(
    name: str, spawn: Spawn
) -> None:
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


def test_a_child_forked_while_a_pool_is_opened_inherits_no_lock(name: str, spawn: Spawn) -> None:
    with Pool.create(name):
        parent = spawn(
            "import os, threading\n"
            "done = threading.Event()\n"
            "def reopen():\n"
            "    while not done.is_set(): Pool.open(sys.argv[1]).close()\n"
            "thread = threading.Thread(target=reopen); thread.start()\n"
            "def inherits():\n"
            "    for fd in os.listdir('/proc/self/fd'):\n"
            "        try: target = os.readlink('/proc/self/fd/' + fd)\n"
            "        except OSError: continue\n"
            "        if target.endswith('/control'): return True\n"
            "    return False\n"
            "count = 0\n"
            "for _ in range(200):\n"
            "    child = os.fork()\n"
            "    if child == 0: os._exit(inherits())\n"
            "    count += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
            "done.set(); thread.join(); print(count)",
            name,
        )
        assert parent.line() == "0"


def test_a_daemon_thread_in_a_wait_does_not_abort_the_end_of_the_process(
    pool: Pool, spawn: Spawn
) -> None:
    for call in (
        "Consumer(pool).get()",
        "Producer(pool).lease((1 << 20,), 'uint8')",
        "pool.wait_dead(60)",
    ):
        # The interpreter ends, and for a while gives the GIL to whoever asks for it.
        ending = spawn(
            "import threading\n"
            "pool = Pool.open(sys.argv[1])\n"
            "held = [Producer(pool).lease((1 << 20,), 'uint8') for _ in range(2)]\n"
            "class Slow:\n"
            "    def __del__(self, sleep=time.sleep): sleep(0.4)\n"
            "slow = Slow()\n"
            f"threading.Thread(target=lambda: {call}, daemon=True).start()\n"
            "time.sleep(0.1)",
            pool.name,
        )
        assert ending.wait() == 0, call


def test_a_forked_child_finds_its_handles_dead_and_disturbs_nothing(
    name: str, spawn: Spawn
) -> None:
    parent = spawn(
        "import gc, os\n"
        "pool = Pool.open(sys.argv[1], label='parent'); p = Producer(pool); c = Consumer(pool)\n"
        "lease = p.lease((1,), 'uint8'); p.lease((1,), 'uint8').publish(4); item = c.get()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    calls = [pool.stats, c.try_get, lambda: p.lease((1,), 'uint8'),\n"
        "             lambda: lease.publish(1), lambda: lease.write(b'x'), item.release,\n"
        "             lambda: lease.__dlpack__(), lambda: item.__dlpack__(max_version=(1, 0))]\n"
        "    for call in calls:\n"
        "        try: call(); print('done')\n"
        "        except PoolClosed as error: print('parent process' in str(error))\n"
        "    try:\n"
        "        with item: raise KeyError\n"
        "    except Exception as error: print(type(error) is KeyError)\n"
        "    del lease, item; gc.collect()\n"
        "    own = Pool.open(sys.argv[1]); print(own.stats()['segments'][0]['in_use_slabs'])\n"
        "    own.close(); print(os.getpid()); time.sleep(60)\n"
        "time.sleep(60)\n",
        name,
    )
    with Pool.create(name, classes=[(4096, 3)]) as pool:
        assert [parent.line() for _ in range(10)] == ["True"] * 9 + ["2"]
        child = int(parent.line())
        try:
            parent.kill()  # The child lives on, and holds no lock of its parent's.
            dead = pool.wait_dead(timeout_s=30)
            assert dead is not None
            assert (dead.label, dead.pid) == ("parent", parent.popen.pid)
            with Consumer(pool).get(timeout_s=30) as item:
                assert (item.key, item.attempt) == (4, 1)
        finally:
            os.kill(child, signal.SIGKILL)


PRODUCE = """
import os
pool = Pool.open(sys.argv[1]); producer = Producer(pool, max_items=4)
ledger = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
identity = int(sys.argv[3])
for count in range(1 << 30):
    key = identity << 32 | count
    lease = producer.lease((512,), 'uint64')
    memoryview(lease)[:] = array_of(key)
    lease.publish(key)
    os.write(ledger, key.to_bytes(8, 'little'))
"""
CONSUME = """
import os
pool = Pool.open(sys.argv[1]); consumer = Consumer(pool)
ledger = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
while True:
    item = consumer.get()
    view = memoryview(item)
    if view.tolist() != array_of(item.key).tolist():
        os.write(ledger, (0xBAD).to_bytes(8, 'little'))
    else:
        os.write(ledger, item.key.to_bytes(8, 'little'))
    del view
    item.release()
"""
ARRAY_OF = """
import array
def array_of(key): return array.array('Q', [key * 0x9E3779B97F4A7C15 & (1 << 64) - 1]) * 512
"""


def read_ledger(path: Path) -> list[int]:
    data = path.read_bytes() if path.exists() else b""
    return [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]


def storm(
    pool: Pool, spawn: Spawn, folder: Path, *, kills: int, seed: int, eventually: Eventually
) -> None:
    """Kills producers and consumers at random, and compares what each side wrote down."""
    published, consumed = folder / "published", folder / "consumed"
    chance = random.Random(seed)
    started = 0

    def start(code: str) -> Process:
        nonlocal started
        started += 1
        ledger = published if code is PRODUCE else consumed
        return spawn(ARRAY_OF + code, pool.name, ledger, started)

    kinds = [PRODUCE, PRODUCE, CONSUME, CONSUME]
    processes = [start(code) for code in kinds]
    for _ in range(kills):
        time.sleep(chance.uniform(0.0, 0.06))
        victim = chance.randrange(len(kinds))
        processes[victim].end()
        processes[victim] = start(kinds[victim])
    for process, code in zip(processes, kinds, strict=True):
        if code is PRODUCE:
            process.end()
    # What was written down as published arrives; then nothing is in use any more.
    eventually(lambda: set(read_ledger(published)) <= set(read_ledger(consumed)))
    for process in processes:
        process.end()
    drain = Consumer(pool)

    def is_drained() -> bool:
        item = drain.try_get()  # Of a publisher that was killed before it wrote it down.
        if item is not None:
            item.release()
        return in_use(pool) == 0

    eventually(is_drained)
    taken = read_ledger(consumed)
    assert 0xBAD not in taken
    assert len(set(taken)) >= kills  # There was traffic between the kills.
    assert pool.lost() == 0
    assert len(taken) - len(set(taken)) <= pool.stats()["redelivered"]


@pytest.mark.parametrize("memory", [{"classes": [(4096, 12)]}, {"bytes": 12 * 4096}])
def test_a_storm_of_kills_loses_and_leaks_nothing(
    name: str, spawn: Spawn, tmp_path: Path, eventually: Eventually, memory: dict[str, Any]
) -> None:
    with Pool.create(name, **memory, max_lanes=64) as pool:
        storm(pool, spawn, tmp_path, kills=100, seed=1, eventually=eventually)


@pytest.mark.deep
@pytest.mark.limit(600)
def test_a_long_storm_of_kills_loses_and_leaks_nothing(
    name: str, spawn: Spawn, tmp_path: Path, eventually: Eventually
) -> None:
    with Pool.create(name, classes=[(4096, 12)], max_lanes=64) as pool:
        storm(pool, spawn, tmp_path, kills=1500, seed=2, eventually=eventually)


def test_closed_is_not_dead(name: str) -> None:
    with Pool.create(name) as pool:
        Pool.open(name, label="left").close()
        assert [lane.state for lane in pool.lanes()] == ["alive", "left"]
        with pytest.raises(PoolClosed):
            closed = Pool.open(name)
            closed.close()
            closed.stats()
        assert pool.wait_dead(timeout_s=0.1) is None
