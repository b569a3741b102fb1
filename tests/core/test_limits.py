"""Limits of sizes, numbers and memory; each error names the value, the limit and the way out."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest

from flowtrain_core import (
    Consumer,
    Pool,
    PoolClosed,
    PoolSpace,
    Producer,
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
    assert len(errors) == 12
    assert all(issubclass(kind, flowtrain_core.FlowTrainError) for kind in errors)
