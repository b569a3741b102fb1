"""Limits of sizes, numbers and memory; each error names the value, the limit and the way out."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest

from flowtrain_core import (
    Consumer,
    Pool,
    PoolClosed,
    PoolSpace,
    Producer,
    SystemCallError,
    _ops,
)

RUNTIME = Path(f"/dev/shm/flowtrain-{os.geteuid()}")


def test_a_lease_that_can_never_fit_is_refused_at_once(pool: Pool) -> None:
    with pytest.raises(ValueError, match="1048577 bytes exceeds the largest slab of 1048576 bytes"):
        Producer(pool).lease(((1 << 20) + 1,), "uint8")
    with pytest.raises(ValueError, match="exceeds max_bytes=100"):
        Producer(pool, max_bytes=100).lease((101,), "uint8")
    segment = pool.add_segment(classes=[(4096, 1)])
    with pytest.raises(ValueError, match=f"segment {segment}: a lease of 4097"):
        Producer(pool, segment=segment).lease((4097,), "uint8")


def test_attention_of_heads_without_a_dimension_is_refused() -> None:
    heads, lengths = numpy.zeros((4, 1, 0), numpy.float32), numpy.array([1])
    sums = numpy.zeros((4, 1), numpy.float32)
    with pytest.raises(ValueError, match="head_dim at least 1"):
        _ops.attention(heads, heads, heads, lengths, 1.0, False, heads.copy(), sums)


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


def test_too_much_memory_names_both_numbers(name: str) -> None:
    # With torch imported: with a second C++ runtime the core could not read numbers from files.
    with contextlib.suppress(ImportError):
        importlib.import_module("torch")
    with Pool.create(name) as pool:
        with pytest.raises(PoolSpace, match=r"\d{13} bytes .* \d+ are available") as caught:
            pool.add_segment(classes=[(1 << 40, 1)], prefault=False)
        assert isinstance(caught.value, MemoryError)
        pool.add_segment(classes=[(4096, 1)])  # The failed one has no effect.


def test_control_tables_larger_than_shared_memory_name_both_numbers(name: str) -> None:
    rings = [f"ring-{i}" for i in range(4096)]
    where = f"the tmpfs of {RUNTIME}"
    with pytest.raises(PoolSpace, match=rf"needs \d{{12}} bytes and {where} has \d+ left"):
        Pool.create(name, rings=rings, max_cells=1 << 24)
    assert not Pool.exists(name)
    assert not (RUNTIME / name).exists()


@contextlib.contextmanager
def no_new_threads() -> Iterator[None]:
    """Makes every start of a thread fail, by stacks larger than the address space.

    A limit of the user's processes (RLIMIT_NPROC) does not bind root.
    """
    libc = ctypes.CDLL(None)
    attributes = ctypes.create_string_buffer(64)  # pthread_attr_t has 56 bytes.
    before, huge = ctypes.c_size_t(), ctypes.c_size_t(1 << 47)
    libc.pthread_getattr_default_np(attributes)
    libc.pthread_attr_getstacksize(attributes, ctypes.byref(before))
    libc.pthread_attr_setstacksize(attributes, huge)
    assert libc.pthread_setattr_default_np(attributes) == 0
    try:
        yield
    finally:
        libc.pthread_attr_setstacksize(attributes, before)
        libc.pthread_setattr_default_np(attributes)


@contextlib.contextmanager
def no_new_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
        try:
            with contextlib.suppress(OSError):
                while True:
                    files.enter_context(open(os.devnull))
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


def leftovers(name: str) -> tuple[int, list[Path]]:
    """Number of open files of this process, and the sockets of a pool."""
    return len(os.listdir("/proc/self/fd")), list((RUNTIME / name).glob("*.sock"))


THREADS = r"errno 11\); this user may have .* threads \(ulimit -u\), .* \(pids.max\)"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda name, pool: Pool.create(f"{name}-2"), "-2': cannot start .* maps new segments: "),
        (lambda name, pool: Pool.open(name), "': cannot start the thread that maps new segments: "),
        (lambda name, pool: pool.add_segment(bytes=4096), "': .* thread that hands out memory: "),
    ],
)
def test_a_process_without_threads_is_told_so_and_loses_nothing(
    name: str, call: Callable[[str, Pool], object], message: str
) -> None:
    with Pool.create(name) as pool:
        Pool.create(f"{name}-2").close()  # Its entry for signals keeps an open file.
        files, sockets = leftovers(name)
        with no_new_threads(), pytest.raises(SystemCallError, match=message + ".*" + THREADS):
            call(name, pool)
        files_now, sockets_now = leftovers(name)
        assert files_now <= files  # Garbage of other tests may hold some.
        assert sockets_now == sockets
        assert not (RUNTIME / f"{name}-2").exists()
        assert pool.stats()["segments"] == []
        assert {lane.state for lane in pool.lanes()} <= {"alive", "left"}
        pool.add_segment(bytes=4096)
        Producer(pool).lease((1,), "uint8").publish(1)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core needs no other thread")
def test_memory_that_is_touched_by_several_threads_says_how_to_do_without(name: str) -> None:
    with Pool.create(name, bytes=4096) as pool:
        with no_new_threads(), pytest.raises(SystemCallError, match="2': .* prefault=False omits"):
            pool.add_segment(bytes=128 << 20)
        assert len(pool.stats()["segments"]) == 1
        with no_new_threads():
            pool.add_segment(bytes=128 << 20, prefault=False)


def test_a_process_without_descriptors_is_told_so(name: str) -> None:
    with Pool.create(name) as pool:
        with no_new_descriptors(), pytest.raises(SystemCallError) as caught:
            pool.add_segment(bytes=4096)
        assert f"pool '{name}': cannot listen on " in str(caught.value)
        assert "errno 24); this process may have 64 descriptors open" in str(caught.value)
        pool.add_segment(bytes=4096)


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


def test_errors_are_of_one_family() -> None:
    import flowtrain_core

    kinds = [kind for kind in vars(flowtrain_core).values() if isinstance(kind, type)]
    errors = {kind for kind in kinds if issubclass(kind, Exception)}
    assert len(errors) == 15
    assert all(issubclass(kind, flowtrain_core.FlowTrainError) for kind in errors)
