"""Handles that end while items are unread: what they published stays readable without them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from core.processes import Spawn

from flowtrain_core import Consumer, Pool, PoolExists, PoolNotFound, Producer, StaleAddress

PUBLISH = (
    "pool = Pool.open(sys.argv[1], label='owner')\n"
    "segment = pool.add_segment(classes=[(4096, 3)])\n"
    "p = Producer(pool, segment=segment)\n"
    "for key in range(3):\n"
    "    lease = p.lease((5,), 'uint8'); memoryview(lease)[:] = b'stays'; lease.publish(key)\n"
)


def publish(pool: Pool, key: int) -> None:
    segment = pool.add_segment(classes=[(4096, 1)])
    lease = Producer(pool, segment=segment).lease((5,), "uint8")
    memoryview(lease)[:] = b"stays"
    lease.publish(key)


def take(consumer: Consumer) -> int:
    with consumer.get(timeout_s=30) as item:
        assert bytes(memoryview(item)) == b"stays"
        return int(item.key)


def leave(pool: Pool) -> None:
    with pool:
        pass


@pytest.mark.parametrize("end", [Pool.close, leave, lambda pool: None])
def test_an_owner_that_closes_at_once_loses_nothing(name: str, end: Callable[[Pool], None]) -> None:
    with Pool.create(name) as pool:
        other = Pool.open(name)
        publish(other, 7)
        end(other)
        del other
        assert take(Consumer(pool)) == 7
        assert pool.lost() == 0


def test_a_creator_that_closes_before_the_owner_loses_nothing(name: str) -> None:
    pool, owner, reader = Pool.create(name), Pool.open(name), Pool.open(name)
    publish(owner, 7)
    pool.close()
    assert take(Consumer(reader)) == 7
    # Nobody could map a new segment any more.
    reader.close()
    owner.close()


@pytest.mark.parametrize("killed", [False, True])
def test_a_handle_that_opens_later_reads_what_another_has_mapped(
    name: str, spawn: Spawn, killed: bool
) -> None:
    with Pool.create(name) as pool:
        owner = spawn(PUBLISH + "print('published'); sys.stdin.readline()", name)
        assert owner.line() == "published"
        if killed:
            assert take(Consumer(pool)) == 0  # Mapped here from now on.
            owner.kill()
        else:
            owner.tell()
            assert owner.wait() == 0  # It never closed its handle.
        with Pool.open(name) as late:
            consumer = Consumer(late)
            assert [take(consumer) for _ in range(2)] == [0 + killed, 1 + killed]


def test_a_child_of_multiprocessing_that_ends_loses_nothing(name: str, spawn: Spawn) -> None:
    with Pool.create(name) as pool:
        parent = spawn(
            "import multiprocessing\n"
            "def publish():\n"
            f"    global pool, p\n    {PUBLISH.strip().replace(chr(10), chr(10) + '    ')}\n"
            "child = multiprocessing.get_context('fork').Process(target=publish)\n"
            "child.start(); child.join(); print(child.exitcode)",
            name,
        )
        assert parent.line() == "0"
        assert take(Consumer(pool)) == 0


def test_items_that_nobody_mapped_before_their_owner_died_are_reported(
    name: str, spawn: Spawn
) -> None:
    creator = spawn("pool = Pool.create(sys.argv[1]); print('up'); sys.stdin.read()", name)
    assert creator.line() == "up"
    creator.stop()
    owner = spawn(PUBLISH + "print('published'); sys.stdin.read()", name)
    assert owner.line() == "published"
    owner.kill()
    with Pool.open(name) as late:
        with pytest.raises(StaleAddress, match="died with its owner"):
            Consumer(late).get(timeout_s=30)
        with pytest.raises(StaleAddress, match="died with its owner"):
            Consumer(late).get_many(8, timeout_s=30)
        publish(late, 9)
        assert take(Consumer(late, strict=False)) == 9  # It skips the last one, and counts it.
        assert late.lost() == 3


@pytest.mark.parametrize(
    ("end", "loss"), [("pool.close()", "PoolTimeout"), ("del pool", "NoneType")]
)
def test_control_c_ends_the_wait_of_a_close(
    name: str, spawn: Spawn, eventually: Callable[[Callable[[], object]], None], end: str, loss: str
) -> None:
    files = Path(f"/dev/shm/flowtrain-{os.geteuid()}/{name}")
    creator = spawn(
        "import os, signal\n"
        "def stop(*_):\n"
        "    print('still closing', os.path.exists(sys.argv[2]))\n"
        "    raise KeyboardInterrupt\n"
        "signal.signal(2, stop)\n"
        "pool = Pool.create(sys.argv[1]); print('up'); sys.stdin.readline()\n"
        "pool.add_segment(classes=[(4096, 1)])\n"
        f"try:\n    {end}\n    while True: time.sleep(0.01)\n"
        "except KeyboardInterrupt as error:\n"
        "    print('closed', not os.path.exists(sys.argv[2]), type(error.__context__).__name__)",
        name,
        files,
    )
    assert creator.line() == "up"
    other = spawn("pool = Pool.open(sys.argv[1]); print('up'); sys.stdin.read()", name)
    assert other.line() == "up"
    other.stop()
    creator.tell()
    eventually(lambda: not Pool.exists(name))  # A pool that is being closed cannot be opened.
    creator.popen.send_signal(signal.SIGINT)
    assert creator.line() == "still closing True"
    assert creator.line() == f"closed True {loss}"


def test_a_pool_that_is_being_closed_says_by_whom(
    name: str, spawn: Spawn, eventually: Callable[[Callable[[], object]], None]
) -> None:
    creator = spawn(
        "pool = Pool.create(sys.argv[1]); print('up'); sys.stdin.readline()\n"
        "pool.add_segment(classes=[(4096, 1)]); pool.close()",
        name,
    )
    assert creator.line() == "up"
    other = spawn("pool = Pool.open(sys.argv[1]); print('up'); sys.stdin.read()", name)
    assert other.line() == "up"
    other.stop()
    creator.tell()
    eventually(lambda: not Pool.exists(name))
    pid = creator.popen.pid
    with pytest.raises(PoolNotFound, match=rf"its creator \(pid {pid}\) is closing it;"):
        Pool.open(name)
    with pytest.raises(PoolExists, match=rf"\(pid {pid}\) is closing it, .* try again"):
        Pool.create(name)
    creator.kill()
    with pytest.raises(PoolNotFound, match=rf"\(pid {pid}\) died while closing it"):
        Pool.open(name)
    with pytest.raises(PoolExists, match=r"died while closing it, .*; end these processes"):
        Pool.create(name)
    other.kill()
    Pool.create(name).close()


def test_handles_that_close_together_do_not_rely_on_each_other(name: str, spawn: Spawn) -> None:
    maker = spawn(
        "pool = Pool.create(sys.argv[1]); c = Consumer(pool); print('up')\n"
        "while 1: exec(sys.stdin.readline())",
        name,
    )
    assert maker.line() == "up"
    for key in range(3):
        owner, other = Pool.open(name), Pool.open(name)
        maker.popen.send_signal(signal.SIGSTOP)
        publish(owner, key)
        time.sleep(0.1)  # `other` maps the segment; the creator, which is stopped, does not.
        threads = [threading.Thread(target=pool.close) for pool in (owner, other)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)  # Beyond the time for which a handle waits for all others.
        maker.popen.send_signal(signal.SIGCONT)
        maker.tell("item = c.get(); print(item.key, flush=True); item.release()")
        assert maker.line() == str(key)
        for thread in threads:
            thread.join()
