"""Waits: what wakes them, and what ends them: deadline, close, Ctrl-C, end of the memory."""

from __future__ import annotations

import fcntl
import os
import queue
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from core.processes import Spawn, released

from flowtrain_core import (
    Consumer,
    FlowTrainError,
    Pool,
    PoolClosed,
    PoolTimeout,
    Producer,
)

RUNTIME = Path(f"/dev/shm/flowtrain-{os.geteuid()}")

# Sends SIGINT to the process while it prefaults the first 16 MiB of a segment, and has the signal
# noticed before the next.
INTERRUPTED_PREFAULT = """
#define _GNU_SOURCE
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

int madvise(void *at, size_t bytes, int advice) {
  static int calls;
  if (advice != 23) return syscall(SYS_madvise, at, bytes, advice);
  if (__atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED) == 0) kill(getpid(), SIGINT);
  write(1, "touched\\n", 8);
  usleep(60000);
  return 0;
}
"""


def test_a_full_pool_times_out_and_names_the_holders(pool: Pool) -> None:
    producer, consumer = Producer(pool), Consumer(pool)
    leases = [producer.lease((1 << 20,), "uint8") for _ in range(2)]
    leases[0].publish(1)
    item = consumer.get()
    with pytest.raises(PoolTimeout) as caught:
        producer.lease((1 << 20,), "uint8", timeout_s=0.01)
    text = str(caught.value)
    assert isinstance(caught.value, TimeoutError)
    assert "no slab for a lease of 1048576 bytes" in text
    assert "'main' (1 leased, 0 published, 1 taken)" in text
    item.release()
    producer.lease((1 << 20,), "uint8", timeout_s=0.0).abort()


def test_holders_without_a_label_are_told_apart(name: str) -> None:
    with Pool.create(name, classes=[(4096, 2)]) as pool:
        producers = [Producer(pool), Producer(pool)]
        leases = [producer.lease((1,), "uint8") for producer in producers]
        with pytest.raises(PoolTimeout) as caught:
            producers[0].lease((1,), "uint8", timeout_s=0.0)
        for lane in (lane.index for lane in pool.lanes() if lane.role == "producer"):
            assert f"pid {os.getpid()}, lane {lane} (1 leased, 0 " in str(caught.value)
        del leases


def test_a_producer_waits_until_its_items_are_released(pool: Pool) -> None:
    producer, consumer = Producer(pool), Consumer(pool)
    producer.drain(timeout_s=0.0)
    Producer(pool).lease((64,), "uint8").publish(0)  # Another's item is not waited for.
    producer.lease((64,), "uint8").publish(1)
    with pytest.raises(PoolTimeout, match=r"1 of its items \(64 bytes\) were not released"):
        producer.drain(timeout_s=0.01)
    consumer.get().release()
    item = consumer.get()
    del item  # Given back, and so not consumed.
    with pytest.raises(PoolTimeout, match="1 published"):
        producer.drain(timeout_s=0.01)
    later = threading.Timer(0.05, consumer.get().release)
    later.start()
    producer.drain(timeout_s=30.0)
    later.join()
    lease = producer.lease((64,), "uint8")
    later = threading.Timer(0.05, producer.close)
    later.start()
    with pytest.raises(PoolClosed):
        producer.drain(timeout_s=30.0)
    later.join()
    lease.abort()


def test_an_empty_ring_times_out(pool: Pool) -> None:
    consumer = Consumer(pool)
    start = time.monotonic()
    with pytest.raises(PoolTimeout, match="ring 'default': nothing arrived"):
        consumer.get(timeout_s=0.05)
    assert time.monotonic() - start >= 0.05


def test_a_sleeping_consumer_and_a_sleeping_producer_are_woken(pool: Pool) -> None:
    producer, consumer = Producer(pool), Consumer(pool)
    first = [producer.lease((1 << 20,), "uint8") for _ in range(2)]
    got: list[int] = []

    def consume() -> None:
        got.extend(released([consumer.get(timeout_s=30)]))

    def publish() -> None:
        time.sleep(0.05)
        first[0].publish(8)

    threads = [threading.Thread(target=consume), threading.Thread(target=publish)]
    for thread in threads:
        thread.start()
    producer.lease((1 << 20,), "uint8", timeout_s=30).abort()  # Waits for that release.
    for thread in threads:
        thread.join()
    assert got == [8]


@pytest.mark.parametrize("limit", [{"max_items": 2}, {"max_bytes": 2000}])
def test_credits_limit_what_is_in_flight_and_return_on_release(
    pool: Pool, limit: dict[str, int]
) -> None:
    producer, consumer = Producer(pool, **limit), Consumer(pool)
    producer.lease((1000,), "uint8").publish(1)
    lease = producer.lease((1000,), "uint8")
    with pytest.raises(PoolTimeout, match="no credit .* 2 items of 2000 bytes are in flight"):
        producer.lease((1000,), "uint8", timeout_s=0.01)
    Producer(pool).lease((1000,), "uint8").abort()  # Another producer has its own credits.
    item = consumer.get()
    with pytest.raises(PoolTimeout):
        producer.lease((1000,), "uint8", timeout_s=0.01)
    item.release()
    second = producer.lease((1000,), "uint8", timeout_s=0.01)
    lease.abort()
    producer.lease((1000,), "uint8", timeout_s=0.01)
    second.abort()


def test_closing_a_port_ends_the_waits_of_other_threads(pool: Pool) -> None:
    producer, consumer = Producer(pool, max_items=1), Consumer(pool)
    held = producer.lease((1,), "uint8")
    ended: list[str] = []

    def wait(call: Callable[[], object]) -> None:
        try:
            call()
        except FlowTrainError as error:
            ended.append(str(error))

    waits = [lambda: consumer.get(60), lambda: producer.lease((1,), "uint8", 60)]
    threads = [threading.Thread(target=wait, args=(each,)) for each in waits]
    for thread in threads:
        thread.start()
    time.sleep(0.1)  # If they do not wait yet, they find a closed port.
    producer.close()
    consumer.close()
    for thread in threads:
        thread.join()
    assert sorted(ended) == [
        "consumer: it is closed; make another",
        "producer: it is closed; make another",
    ]
    held.abort()


def test_a_lease_waits_for_memory_that_is_being_made(name: str, spawn: Spawn) -> None:
    # The first segment takes some time to touch; others can open the pool before.
    leaser = spawn(
        "pool = Pool.open(sys.argv[1], timeout_s=30); producer = Producer(pool)\n"
        "print(producer.lease((1,), 'uint8', timeout_s=30).nbytes)",
        name,
    )
    with Pool.create(name, bytes=256 << 20):
        assert leaser.line() == "1"


def test_a_lease_does_not_wait_for_memory_that_is_gone(name: str, spawn: Spawn) -> None:
    with Pool.create(name) as pool:
        owner = spawn(
            "pool = Pool.open(sys.argv[1]); print(pool.add_segment(bytes=4096)); sys.stdin.read()",
            name,
        )
        segments = [pool.add_segment(bytes=4096), int(owner.line())]
        producers = [Producer(pool, segment=segment) for segment in segments]
        held = [producer.lease((1,), "uint8", timeout_s=30) for producer in producers]
        ended: queue.Queue[str] = queue.Queue()

        def wait(producer: Producer) -> None:
            try:
                producer.lease((1,), "uint8", timeout_s=1e9)
            except FlowTrainError as error:
                ended.put(f"{type(error).__name__}: {error}")

        for producer in producers:
            threading.Thread(target=wait, args=(producer,), daemon=True).start()
        time.sleep(0.1)  # If they do not wait yet, they find no memory.
        for segment, end in zip(segments, (lambda: pool.drop_segment(1), owner.kill), strict=True):
            end()
            assert f"segment {segment}: there is no memory to lease" in ended.get(timeout=20)
        del held


def test_control_c_ends_a_wait(name: str, spawn: Spawn) -> None:
    with Pool.create(name, classes=[(64, 1)]) as pool:
        held = Producer(pool).lease((1,), "uint8")
        for call in (
            "Consumer(pool).get()",
            "Producer(pool).lease((1,), 'uint8')",
            "pool.wait_dead(60)",
            "Pool.open('nobody-makes-this', timeout_s=60)",
        ):
            # A process that a shell started in the background ignores the signal.
            waiter = spawn(
                "import signal; signal.signal(2, signal.default_int_handler)\n"
                "pool = Pool.open(sys.argv[1])\n"
                f"try: print('up'); {call}\nexcept KeyboardInterrupt: print('interrupted')",
                name,
            )
            assert waiter.line() == "up"
            time.sleep(0.1)
            waiter.popen.send_signal(2)
            assert waiter.line() == "interrupted"
        held.abort()


def test_control_c_ends_the_wait_for_another_creator(name: str, spawn: Spawn) -> None:
    folder = os.open(f"/dev/shm/flowtrain-{os.geteuid()}", os.O_RDONLY)
    for call in ("Pool.create(sys.argv[1])", "Pool.unlink(sys.argv[1])"):
        waiter = spawn(
            "import signal, threading; signal.signal(2, signal.default_int_handler)\n"
            "sys.stdin.readline()\n"
            f"try: threading.Timer(0.1, print, ['others run']).start(); {call}\n"
            "except KeyboardInterrupt: print('interrupted')",
            name,
        )
        fcntl.flock(folder, fcntl.LOCK_EX)
        try:
            waiter.tell()
            assert waiter.line() == "others run"
            waiter.popen.send_signal(2)
            assert waiter.line() == "interrupted"
        finally:
            fcntl.flock(folder, fcntl.LOCK_UN)
    os.close(folder)


def test_control_c_and_the_end_of_the_process_end_the_wait_to_add_a_segment(
    name: str, spawn: Spawn
) -> None:
    with Pool.create(name, max_lanes=8), (RUNTIME / name / "control").open("r+b") as control:
        # The byte behind those of the lanes and of the recovery lock.
        carve = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 8 + 1, 1, 0)
        fcntl.fcntl(control, fcntl.F_OFD_SETLK, carve)
        adder = spawn(
            "import signal; signal.signal(2, signal.default_int_handler)\n"
            "pool = Pool.open(sys.argv[1])\n"
            "try: print('up'); pool.add_segment(bytes=4096)\n"
            "except BaseException as error: print(type(error).__name__)",
            name,
        )
        assert adder.line() == "up"
        time.sleep(0.1)
        adder.popen.send_signal(2)
        assert adder.line() == "KeyboardInterrupt"
        ending = spawn(
            "import threading\n"
            "pool = Pool.open(sys.argv[1])\n"
            "add = lambda: pool.add_segment(bytes=4096)\n"
            "threading.Thread(target=add, daemon=True).start(); time.sleep(0.2)",
            name,
        )
        assert ending.wait() == 0
        closing = spawn(
            "import faulthandler, signal; faulthandler.dump_traceback_later(30, exit=True)\n"
            "pool = Pool.open(sys.argv[1]); signal.signal(2, lambda *_: pool.close())\n"
            "print('up')\n"
            "try: pool.add_segment(bytes=4096)\n"
            "except PoolClosed: print('closed by its signal handler')",
            name,
        )
        assert closing.line() == "up"
        time.sleep(0.1)
        closing.popen.send_signal(2)
        assert closing.line() == "closed by its signal handler"


@pytest.fixture
def interrupting(tmp_path: Path) -> dict[str, str]:
    """Environment of a process that gets SIGINT while it prefaults its first segment."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    source, library = tmp_path / "interrupt.c", tmp_path / "interrupt.so"
    source.write_text(INTERRUPTED_PREFAULT)
    subprocess.run(["cc", "-shared", "-fPIC", source, "-o", library], check=True)
    return os.environ | {"LD_PRELOAD": str(library)}


SETUP = "import os, signal; signal.signal(2, signal.default_int_handler)\n"
SIZE = "bytes=7 << 24"  # Seven pieces, and few enough for one thread.


def test_control_c_ends_the_prefault_of_a_new_pool_and_leaves_none(
    name: str, spawn: Spawn, interrupting: dict[str, str]
) -> None:
    maker = spawn(
        f"{SETUP}try: Pool.create(sys.argv[1], {SIZE})\n"
        "except KeyboardInterrupt: print('interrupted')\n"
        "print(os.path.exists(sys.argv[2])); pool = Pool.create(sys.argv[1], bytes=4096)\n"
        "print(len(pool.lanes()), 'lane')",
        name,
        RUNTIME / name,
        env=interrupting,
    )
    expected = ["touched", "interrupted", "False", "touched", "1 lane"]
    assert [maker.line() for _ in expected] == expected


def test_control_c_ends_the_prefault_of_a_segment_and_adds_none(
    name: str, spawn: Spawn, interrupting: dict[str, str]
) -> None:
    adder = spawn(
        f"{SETUP}pool = Pool.create(sys.argv[1])\n"
        f"try: pool.add_segment({SIZE})\n"
        "except KeyboardInterrupt: print('interrupted')\n"
        "print(pool.stats()['segments'], pool.add_segment(bytes=4096))",
        name,
        env=interrupting,
    )
    expected = ["touched", "interrupted", "touched", "[] 1"]
    assert [adder.line() for _ in expected] == expected


@pytest.mark.parametrize("also", ["", "; sys.exit(3)"])
def test_a_signal_handler_may_close_the_pool_whose_segment_is_prefaulted(
    name: str, spawn: Spawn, interrupting: dict[str, str], also: str
) -> None:
    adder = spawn(
        f"{SETUP}import faulthandler; faulthandler.dump_traceback_later(30, exit=True)\n"
        "def close(*_):\n"
        f"    pool.close(){also}\n"
        "signal.signal(2, close); pool = Pool.create(sys.argv[1])\n"
        f"try: pool.add_segment({SIZE})\n"
        "except BaseException as error: print(type(error).__name__, pool.closed)",
        name,
        env=interrupting,
    )
    assert adder.line() == "touched"
    assert adder.line() == ("SystemExit True" if also else "PoolClosed True")


@pytest.mark.parametrize("call", ["pool.add_segment", "Pool.create"])
def test_a_child_forked_during_a_prefault_leaves_the_segment_to_its_parent(
    name: str, spawn: Spawn, interrupting: dict[str, str], call: str
) -> None:
    given = "" if call == "pool.add_segment" else "sys.argv[1], "
    parent = spawn(
        f"{SETUP}signal.signal(2, lambda *_: os.fork())\n"
        "pool = None if len(sys.argv) > 2 else Pool.create(sys.argv[1])\n"
        # Enough for threads that the child does not have.
        f"try: made = {call}({given}bytes=1 << 28)\n"
        "except PoolClosed as error:\n"
        "    os.write(1, b'closed\\n' if 'forked' in str(error) else b'other\\n'); os._exit(0)\n"
        "print('child', os.waitstatus_to_exitcode(os.wait()[1]))\n"
        "[segment] = (pool or made).stats()['segments']; print(segment['bytes'])",
        name,
        *(["create"] if given else []),
        env=interrupting,
    )
    lines = [line for _ in range(16 + 3) if (line := parent.line()) != "touched"]
    assert lines == ["closed", "child 0", str(1 << 28)]
