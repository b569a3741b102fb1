"""What cannot be had: deadlines, credits, sizes, names. Each error says what, how much, and how."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import queue
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from core.processes import Spawn

from flowtrain_core import (
    Consumer,
    FlowTrainError,
    Pool,
    PoolClosed,
    PoolCorrupt,
    PoolExists,
    PoolNotFound,
    PoolSpace,
    PoolTimeout,
    Producer,
    SystemCallError,
    list_pools,
)

RUNTIME = Path(f"/dev/shm/flowtrain-{os.geteuid()}")


def test_a_full_pool_times_out_and_names_who_holds_it(pool: Pool) -> None:
    producer, consumer = Producer(pool), Consumer(pool)
    leases = [producer.lease((1 << 20,), "uint8") for _ in range(2)]
    leases[0].publish(1)
    item = consumer.get()
    with pytest.raises(PoolTimeout) as caught:
        producer.lease((1 << 20,), "uint8", timeout_s=0.01)
    text = str(caught.value)
    assert isinstance(caught.value, TimeoutError)
    assert "no slab for a lease of 1048576 bytes" in text
    assert "'main' writes 1, has published 0, reads 1" in text
    item.release()
    producer.lease((1 << 20,), "uint8", timeout_s=0.0).abort()


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
        got.append(consumer.get(timeout_s=30).key)  # The item is dropped, hence released.

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
def test_credits_bound_what_is_in_flight_and_come_back_on_release(
    pool: Pool, limit: dict[str, int]
) -> None:
    producer, consumer = Producer(pool, **limit), Consumer(pool)
    producer.lease((1000,), "uint8").publish(1)
    lease = producer.lease((1000,), "uint8")
    with pytest.raises(PoolTimeout, match="no credit .* 2 items of 2000 bytes are in flight"):
        producer.lease((1000,), "uint8", timeout_s=0.01)
    Producer(pool).lease((1000,), "uint8").abort()  # Another producer has credits of its own.
    item = consumer.get()
    with pytest.raises(PoolTimeout):
        producer.lease((1000,), "uint8", timeout_s=0.01)
    item.release()
    second = producer.lease((1000,), "uint8", timeout_s=0.01)
    lease.abort()
    producer.lease((1000,), "uint8", timeout_s=0.01)
    second.abort()


def test_what_can_never_fit_is_refused_at_once(pool: Pool) -> None:
    with pytest.raises(ValueError, match="1048577 bytes exceeds the largest slab of 1048576 bytes"):
        Producer(pool).lease(((1 << 20) + 1,), "uint8")
    with pytest.raises(ValueError, match="exceeds max_bytes=100"):
        Producer(pool, max_bytes=100).lease((101,), "uint8")
    segment = pool.add_segment(classes=[(4096, 1)])
    with pytest.raises(ValueError, match=f"segment {segment}: a lease of 4097"):
        Producer(pool, segment=segment).lease((4097,), "uint8")


@pytest.mark.parametrize(
    ("shape", "dtype", "text"),
    [
        ((1,), "float33", "dtype 'float33': .* choose from float32,"),
        ((1,), object(), "dtype '<object"),
        ((1, 1, 1, 1, 1), "uint8", "5 dimensions: at most 4"),
        ((-1,), "uint8", "dimension -1"),
        ((2**32,), "uint8", "dimension 4294967296"),
        ((2**31, 2**31, 2**31), "uint8", "1099511627776 bytes"),
        ((0, 2**31, 2**31, 2**31), "uint8", "1099511627776 bytes"),
    ],
)
def test_shapes_and_dtypes_out_of_range_are_refused(
    pool: Pool, shape: tuple[int, ...], dtype: object, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        Producer(pool).lease(shape, dtype)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: Consumer(p).get_many(-1), "max_items=-1 must be at least 1"),
        (lambda p: p.drop_segment(-1), "segment=-1 must be 1 to 64"),
        (lambda p: p.add_segment(bytes=-1), "bytes=-1 must be at least 0"),
        (lambda p: p.add_segment(classes=[(-1, 1)]), "slab_bytes=-1 must be at least 0"),
        (lambda p: Producer(p, segment=-1), "segment=-1 must be 1 to 64"),
        (lambda p: Producer(p, segment=[1, 2**70]), f"segment={2**70} must be 1 to 64"),
        (lambda p: Producer(p, max_bytes=2**70), f"max_bytes={2**70} .* below 2..63"),
        (lambda p: Pool.create("never", bytes=-1), "bytes=-1 must be at least 0"),
        (lambda p: Pool.create("never", max_cells=-1), "max_cells=-1 must be 0 to 4294967295"),
        (lambda p: Pool.create("never", max_lanes=2**40), f"max_lanes={2**40} must be 0 to"),
    ],
)
def test_a_number_out_of_its_range_is_named(
    pool: Pool, call: Callable[[Pool], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call(pool)


def test_a_batch_takes_the_keys_that_one_lease_takes(pool: Pool) -> None:
    producer, consumer = Producer(pool), Consumer(pool)
    producer.publish_many([producer.lease((1,), "uint8")], [numpy.int64(3)])  # type: ignore[list-item]
    assert consumer.get().key == 3


class NumberedDtype:
    name = 3


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        (numpy.dtype("float32").newbyteorder("S"), "'float32': its bytes are not in this machine"),
        (NumberedDtype(), "NumberedDtype.* not one that items have"),
        ("\ud800", "not one that items have"),
    ],
)
def test_dtypes_that_only_look_like_one_are_refused(
    pool: Pool, dtype: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Producer(pool).lease((1,), dtype)


def test_a_pool_without_memory_says_how_to_get_some(name: str) -> None:
    with Pool.create(name) as pool, pytest.raises(PoolSpace, match="add_segment"):
        Producer(pool).lease((1,), "uint8")


def test_more_memory_than_there_is_names_both_numbers(name: str) -> None:
    # Beside torch: with a C++ runtime of its own, the core could not read numbers from files.
    with contextlib.suppress(ImportError):
        importlib.import_module("torch")
    with Pool.create(name) as pool:
        with pytest.raises(PoolSpace, match=r"\d{13} bytes .* \d+ are available") as caught:
            pool.add_segment(classes=[(1 << 40, 1)], prefault=False)
        assert isinstance(caught.value, MemoryError)
        pool.add_segment(classes=[(4096, 1)])  # What failed is not in the way.


def test_control_tables_larger_than_shared_memory_name_both_numbers(name: str) -> None:
    rings = [f"ring-{i}" for i in range(4096)]
    with pytest.raises(PoolSpace, match=r"needs \d{12} bytes and /dev/shm has \d+ left"):
        Pool.create(name, rings=rings, max_cells=1 << 24)
    assert not Pool.exists(name)
    assert not (RUNTIME / name).exists()


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


def test_names_are_checked_before_anything_is_made_or_removed(name: str) -> None:
    for bad in ("", "a/b", "..", ".x", "a b", "x" * 48):
        for call in (Pool.create, Pool.open, Pool.exists, Pool.unlink):
            with pytest.raises(ValueError, match="letters, digits"):
                call(bad)
    with pytest.raises(ValueError, match="48 bytes, at most 47"):
        Pool.create(name, label="x" * 48)
    with pytest.raises(ValueError, match="different names"):
        Pool.create(name, rings=("a", "a"))
    with Pool.create(name) as pool:
        with pytest.raises(ValueError, match="no ring 'inbox'; it has default"):
            Consumer(pool, "inbox")
        with pytest.raises(ValueError, match="at least 0"):
            pool.wait_dead(timeout_s=-1)
        with pytest.raises(ValueError, match="must be at least 1"):
            Producer(pool, max_items=0)


def test_a_pool_is_made_once_found_by_name_and_gone_with_its_maker(name: str) -> None:
    with pytest.raises(PoolNotFound, match="there is none") as caught:
        Pool.open(name, timeout_s=0.01)
    assert isinstance(caught.value, FileNotFoundError)
    with Pool.create(name):
        with pytest.raises(PoolExists, match=f"made by pid {os.getpid()}"):
            Pool.create(name)
        assert Pool.exists(name)
        (entry,) = [entry for entry in list_pools() if entry.name == name]
        assert (entry.creator_pid, entry.alive) == (os.getpid(), True)
        with Pool.open(name) as second:
            assert second.lane != Pool.open(name).lane
        assert Pool.exists(name)  # An opener never unlinks.
    assert not Pool.exists(name)
    assert not (RUNTIME / name).exists()


def test_a_handle_removes_only_its_own_pool(name: str) -> None:
    first = Pool.create(name, bytes=1 << 16)
    late = Pool.open(name)
    Pool.unlink(name)
    with Pool.create(name, bytes=1 << 16) as second:
        Producer(second).lease((1,), "uint8").publish(7)
        # The folder and the sockets under this name are the second pool's now.
        with pytest.raises(PoolNotFound, match="was removed"):
            late.add_segment(bytes=1 << 16)
        first.close()
        with Pool.open(name) as other, Consumer(other).get(timeout_s=30) as item:
            assert item.key == 7
    late.close()
    assert not (RUNTIME / name).exists()


def test_open_waits_for_the_pool_to_be_made(name: str, spawn: Spawn) -> None:
    opener = spawn("print('up'); Pool.open(sys.argv[1], timeout_s=30); print('open')", name)
    assert opener.line() == "up"
    with Pool.create(name):
        assert opener.line() == "open"


def test_what_a_crash_left_cannot_be_opened_and_does_not_block_the_name(
    name: str, spawn: Spawn
) -> None:
    maker = spawn("pool = Pool.create(sys.argv[1]); print('made'); sys.stdin.readline()", name)
    assert maker.line() == "made"
    maker.kill()
    assert not Pool.exists(name)
    with pytest.raises(PoolNotFound, match="all dead"):
        Pool.open(name)
    Pool.create(name).close()


def test_files_are_private_and_others_are_refused(name: str) -> None:
    with Pool.create(name):
        assert RUNTIME.stat().st_mode & 0o777 == 0o700
        assert (RUNTIME / name).stat().st_mode & 0o777 == 0o700
        assert (RUNTIME / name / "control").stat().st_mode & 0o777 == 0o600
    (RUNTIME / name).symlink_to("/tmp")
    try:
        with pytest.raises(SystemCallError, match="not a folder of this user alone"):
            Pool.create(name)
    finally:
        (RUNTIME / name).unlink()


def test_a_file_of_another_version_is_not_opened(name: str) -> None:
    with Pool.create(name):
        control = RUNTIME / name / "control"
        with control.open("r+b") as file:
            file.seek(8)
            file.write((99).to_bytes(4, "little"))
        with pytest.raises(PoolCorrupt, match="layout version 99"):
            Pool.open(name)


def test_every_call_on_a_closed_handle_says_so(pool: Pool) -> None:
    producer, consumer = Producer(pool), Consumer(pool)
    lease = producer.lease((1,), "uint8")
    pool.close()
    pool.close()
    calls = [
        lambda: lease.publish(1),
        lambda: producer.lease((1,), "uint8"),
        consumer.get,
        consumer.try_get,
        lambda: Producer(pool),
        lambda: Consumer(pool),
        lambda: pool.add_segment(bytes=1 << 20),
        pool.lanes,
        pool.stats,
        lambda: pool.wait_dead(0),
    ]
    for call in calls:
        with pytest.raises(PoolClosed, match="closed; open it again"):
            call()


def test_closing_a_port_ends_the_waits_of_other_threads(pool: Pool) -> None:
    producer, consumer = Producer(pool, max_items=1), Consumer(pool)
    held = producer.lease((1,), "uint8")
    ended: list[str] = []

    def wait(call: Callable[[], object]) -> None:
        try:
            call()
        except FlowTrainError as error:
            ended.append(str(error))

    waits = [lambda: consumer.get(5), lambda: producer.lease((1,), "uint8", 5)]
    threads = [threading.Thread(target=wait, args=(each,)) for each in waits]
    for thread in threads:
        thread.start()
    time.sleep(0.1)  # Where they do not wait yet, they find a closed port all the same.
    producer.close()
    consumer.close()
    for thread in threads:
        thread.join()
    assert sorted(ended) == [
        "consumer: it is closed; make another",
        "producer: it is closed; make another",
    ]
    held.abort()


def test_a_lease_waits_for_no_memory_that_is_gone(name: str, spawn: Spawn) -> None:
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
        time.sleep(0.1)  # Where they do not wait yet, they find no memory all the same.
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
            # Who starts the tests in the background has them ignore the signal.
            waiter = spawn(
                "import signal; signal.signal(2, signal.default_int_handler)\n"
                "pool = Pool.open(sys.argv[1]); print('up')\n"
                f"try: {call}\nexcept KeyboardInterrupt: print('interrupted')",
                name,
            )
            assert waiter.line() == "up"
            time.sleep(0.1)
            waiter.popen.send_signal(2)
            assert waiter.line() == "interrupted"
        held.abort()


def test_control_c_ends_the_wait_for_another_maker(name: str, spawn: Spawn) -> None:
    folder = os.open(f"/dev/shm/flowtrain-{os.geteuid()}", os.O_RDONLY)
    for call in ("Pool.create(sys.argv[1])", "Pool.unlink(sys.argv[1])"):
        waiter = spawn(
            "import signal, threading; signal.signal(2, signal.default_int_handler)\n"
            "sys.stdin.readline(); threading.Timer(0.1, print, ['others run']).start()\n"
            f"try: {call}\nexcept KeyboardInterrupt: print('interrupted')",
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
        # The byte behind those of the lanes and of the right to reap.
        carve = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 8 + 1, 1, 0)
        fcntl.fcntl(control, fcntl.F_OFD_SETLK, carve)
        adder = spawn(
            "import signal; signal.signal(2, signal.default_int_handler)\n"
            "pool = Pool.open(sys.argv[1]); print('up')\n"
            "try: pool.add_segment(bytes=4096)\n"
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


def test_errors_are_of_one_family() -> None:
    import flowtrain_core

    kinds = [kind for kind in vars(flowtrain_core).values() if isinstance(kind, type)]
    errors = {kind for kind in kinds if issubclass(kind, Exception)}
    assert len(errors) == 12
    assert all(issubclass(kind, flowtrain_core.FlowTrainError) for kind in errors)


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
        # Whoever sweeps next sees that nothing of it is in use.
        deadline = time.monotonic() + 10
        while len(pool.stats()["segments"]) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(ValueError, match="segment 1 is not one that this handle added"):
            pool.drop_segment(first["id"])
