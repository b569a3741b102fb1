"""Views: what importers see, what keeps memory alive, and which calls they refuse."""

from __future__ import annotations

import ctypes
import gc
import io
import struct
import sys
import threading
import warnings
from typing import Any

import numpy
import pytest

from flowtrain_core import (
    Consumer,
    Item,
    Lease,
    Pool,
    PoolClosed,
    Producer,
    ViewRefused,
    ViewsAlive,
)

NUMPY_DTYPES = [
    "float32",
    "float64",
    "float16",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bool",
    "complex64",
]


def hand_over(pool: Pool, lease: Lease) -> Item:
    lease.publish(1)
    return Consumer(pool).get()


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_numpy_sees_what_was_written(pool: Pool, dtype: str) -> None:
    values = numpy.arange(24).reshape(2, 3, 4).astype(dtype)
    lease = Producer(pool).lease(values.shape, numpy.dtype(dtype))
    numpy.asarray(lease)[:] = values
    item = hand_over(pool, lease)
    for view in (numpy.asarray(item), numpy.from_dlpack(item)):
        assert view.dtype == values.dtype
        assert not view.flags.writeable
        numpy.testing.assert_array_equal(view, values)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int64", "bool"])
def test_torch_sees_what_was_written(pool: Pool, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    values = torch.arange(12).reshape(3, 4).to(getattr(torch, dtype))
    lease = Producer(pool).lease(values.shape, values.dtype)
    torch.from_dlpack(lease).copy_(values)
    item = hand_over(pool, lease)
    assert (item.dtype, item.shape) == (dtype, (3, 4))
    assert torch.equal(torch.from_dlpack(item), values)


def test_the_buffer_protocol_has_no_bfloat16_and_names_the_way_out(pool: Pool) -> None:
    lease = Producer(pool).lease((2,), "bfloat16")
    with pytest.raises(ViewRefused, match="DLPack"):
        memoryview(lease)


def test_numpy_makes_no_array_without_a_buffer(pool: Pool) -> None:
    lease = Producer(pool).lease((2,), "bfloat16")
    with pytest.raises(BufferError, match="bfloat16"):
        numpy.asarray(lease)
    item = hand_over(pool, lease)
    with pytest.raises(PoolClosed, match="published or aborted"):
        numpy.asarray(lease)
    with pytest.raises(BufferError, match="bfloat16"):
        numpy.asarray(item)
    item.release()
    with pytest.raises(PoolClosed, match="released"):
        numpy.asarray(item)
    lease = Producer(pool).lease((2,), "float32")
    numpy.asarray(lease)[:] = 7
    assert lease.__array__().tolist() == [7, 7]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 2, 3, 4)])
def test_shapes_from_none_to_four_dimensions(pool: Pool, shape: tuple[int, ...]) -> None:
    lease = Producer(pool).lease(shape, "float32")
    assert numpy.asarray(lease).shape == numpy.from_dlpack(lease).shape == shape
    item = hand_over(pool, lease)
    assert numpy.asarray(item).shape == numpy.from_dlpack(item).shape == shape


@pytest.mark.parametrize("view", [memoryview, numpy.asarray, numpy.from_dlpack])
def test_release_refuses_while_a_view_lives(pool: Pool, view: type) -> None:
    item = hand_over(pool, Producer(pool).lease((4,), "uint8"))
    first = view(item)
    second = first[1:]  # A view of a view.
    del first
    with pytest.raises(ViewsAlive, match="1 view of it is alive .* delete it before release"):
        item.release()
    del second
    item.release()
    assert pool.stats()["segments"][0]["in_use_slabs"] == 0


@pytest.mark.parametrize("view", [memoryview, numpy.asarray, numpy.from_dlpack])
def test_a_lease_with_views_is_neither_published_nor_aborted(pool: Pool, view: type) -> None:
    producer = Producer(pool)
    lease = producer.lease((4,), "uint8")
    first = view(lease)
    second = first[1:]
    del first
    for end in (
        lambda: lease.publish(1),
        lease.abort,
        lambda: producer.publish_many([producer.lease((4,), "uint8"), lease], [1, 2]),
    ):
        with pytest.raises(ViewsAlive, match="1 view of it is alive .* delete it before"):
            end()
    numpy.asarray(second)[:] = 7  # It is still the writer's.
    assert Consumer(pool).try_get() is None
    del second
    assert bytes(memoryview(hand_over(pool, lease)))[1:] == bytes([7] * 3)


def test_a_lease_with_a_tensor_is_not_published(pool: Pool) -> None:
    torch = pytest.importorskip("torch")
    lease = Producer(pool).lease((4, 2), "bfloat16")
    kept = torch.from_dlpack(lease)[1].view(torch.int16)
    with pytest.raises(ViewsAlive, match="before publish"):
        lease.publish(1)
    del kept
    lease.publish(1)


def test_a_view_keeps_the_slab_of_a_dropped_lease(pool: Pool) -> None:
    view = numpy.asarray(Producer(pool).lease((4,), "uint8"))
    gc.collect()
    assert pool.stats()["segments"][0]["in_use_slabs"] == 1
    del view
    gc.collect()
    assert pool.stats()["segments"][0]["in_use_slabs"] == 0


def test_an_item_is_delivered_again_until_it_is_released(pool: Pool) -> None:
    producer, consumer = Producer(pool), Consumer(pool)
    for key in (1, 2):
        producer.lease((4,), "uint8").publish(key)
    for error in (KeyError, KeyboardInterrupt, GeneratorExit):
        with pytest.raises(error), consumer.get(timeout_s=0) as item:
            raise error
        with pytest.raises(BufferError, match="given back"):
            memoryview(item)
    del item
    consumer.get(timeout_s=0)  # Dropped at once.
    for item in consumer.get_many(2, timeout_s=0):
        assert item.attempt == 2
    del item
    seen = {}
    for _ in range(2):
        with Consumer(pool).get(timeout_s=0) as item:
            seen[item.key] = item.attempt
    assert seen == {1: 3, 2: 3}
    assert Consumer(pool).try_get() is None
    stats = pool.stats()
    assert (stats["redelivered"], stats["items_released"]) == (6, 2)


def test_a_block_is_about_the_object_that_it_is_given(pool: Pool) -> None:
    producer, consumer = Producer(pool), Consumer(pool)
    producer.lease((4,), "uint8").publish(1)
    for each in (consumer.get(timeout_s=0), producer, consumer, pool):
        with each as inner:
            assert inner is each


def test_views_that_an_error_leaves_delay_the_next_delivery(pool: Pool) -> None:
    Producer(pool).lease((4,), "uint8").publish(1)
    consumer = Consumer(pool)
    item = consumer.get()
    with pytest.raises(KeyError) as raised, item:
        view = memoryview(item)
        raise KeyError
    assert view.nbytes == 4
    assert consumer.try_get() is None
    with pytest.raises(BufferError, match="given back"):
        memoryview(item)
    with pytest.raises(PoolClosed, match="given back"):
        item.release()
    part = view[1:]
    del view, raised
    gc.collect()
    assert consumer.try_get() is None
    threading.Thread(target=part.release).start()
    left = item  # A retry loop still has the item while it asks for the next one.
    item = consumer.get(timeout_s=60)
    assert (item.attempt, left.attempt) == (1, 0)
    with pytest.raises(ViewsAlive), item:  # Without another error it is raised.
        view = memoryview(item)
    del view
    with consumer.get(timeout_s=0) as item:
        assert item.attempt == 2


def test_release_refuses_while_a_tensor_lives(pool: Pool) -> None:
    torch = pytest.importorskip("torch")
    item = hand_over(pool, Producer(pool).lease((4, 2), "bfloat16"))
    kept = torch.from_dlpack(item)[1]
    with pytest.raises(ViewsAlive):
        item.release()
    del kept
    item.release()


@pytest.mark.parametrize("view", ["asarray", "frombuffer"])
def test_a_tensor_over_the_bytes_of_a_lease_or_item_counts(pool: Pool, view: str) -> None:
    torch = pytest.importorskip("torch")

    def view_of(source: Lease | Item) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Torch has no read-only tensors.
            return getattr(torch, view)(source, dtype=torch.uint8)[1:]

    lease = Producer(pool).lease((2, 2), "float32")
    kept = view_of(lease)
    with pytest.raises(ViewsAlive, match="1 view of it is alive"):
        lease.publish(1)
    kept.fill_(7)
    del kept
    item = hand_over(pool, lease)
    kept = view_of(item)
    with pytest.raises(ViewsAlive, match="1 view of it is alive"):
        item.release()
    assert kept.tolist() == [7] * 15
    del kept
    item.release()


def test_users_of_plain_bytes_leave_no_view(pool: Pool) -> None:
    lease = Producer(pool).lease((2, 2), "uint8")
    for _ in range(100):
        assert io.BytesIO(b"abcd").readinto(lease) == 4
    references = sys.getrefcount(lease)
    for _ in range(100):
        assert struct.unpack_from("4s", lease) == (b"abcd",)
        assert bytes(lease) == b"abcd"
    assert sys.getrefcount(lease) == references
    item = hand_over(pool, lease)
    with pytest.raises(TypeError, match="must be read-write"):
        io.BytesIO(b"abcd").readinto(item)
    assert struct.unpack_from("4s", item) == (b"abcd",)
    item.release()
    with pytest.raises(BufferError, match="it was released"):
        struct.unpack_from("4s", item)


def test_a_capsule_that_is_not_imported_counts_as_a_view_while_it_lives(pool: Pool) -> None:
    item = hand_over(pool, Producer(pool).lease((4,), "uint8"))
    capsule = item.__dlpack__(max_version=(1, 0))
    with pytest.raises(ViewsAlive):
        item.release()
    del capsule
    item.release()


def test_a_view_keeps_a_dropped_item_and_a_closed_pool_alive(name: str) -> None:
    pool = Pool.create(name, classes=[(4096, 1)])
    lease = Producer(pool).lease((4,), "uint8")
    memoryview(lease)[:] = b"kept"
    view = memoryview(hand_over(pool, lease))
    del lease
    gc.collect()
    assert pool.stats()["segments"][0]["in_use_slabs"] == 1
    pool.close()
    del pool
    gc.collect()
    assert bytes(view) == b"kept"


def test_items_are_read_only_and_leases_are_not(pool: Pool) -> None:
    lease = Producer(pool).lease((4,), "uint8")
    assert not memoryview(lease).readonly
    item = hand_over(pool, lease)
    with pytest.raises((BufferError, ValueError, TypeError)):
        numpy.frombuffer(item, dtype="uint8")[:] = 1
    assert memoryview(item).readonly


def test_an_item_is_not_exported_by_a_protocol_without_read_only(pool: Pool) -> None:
    lease = Producer(pool).lease((4,), "uint8")
    assert "dltensor" in str(lease.__dlpack__())  # Leases are writable.
    item = hand_over(pool, lease)
    for version in (None, (0, 8)):
        with pytest.raises(ViewRefused, match="read-only"):
            item.__dlpack__(max_version=version)
    assert not numpy.from_dlpack(item).flags.writeable


def test_a_lease_is_neither_aborted_nor_published_while_it_is_written(name: str) -> None:
    source = numpy.ones(1 << 27, numpy.uint8)
    with Pool.create(name, classes=[(source.size, 1)], prefault=False) as pool:
        for _ in range(10):  # Until this thread runs during the copy.
            lease = Producer(pool).lease(source.shape, source.dtype)
            seen = numpy.asarray(lease)
            seen[0] = 0
            writer = threading.Thread(target=lease.write, args=(source,))
            writer.start()
            while seen[0] == 0:
                pass
            del seen
            refused = 0
            for end in (lease.abort, lambda lease=lease: lease.publish(1)):
                try:
                    end()
                except ViewsAlive as error:
                    refused += "another thread is writing it" in str(error)
                except PoolClosed:
                    break  # The copy had ended, and the lease was aborted.
            writer.join()
            lease.abort()
            if refused == 2:
                return
    raise AssertionError("a lease that was being written could be given away")


def test_a_finished_lease_or_item_allows_no_views_and_no_second_end(pool: Pool) -> None:
    lease = Producer(pool).lease((4,), "uint8")
    item = hand_over(pool, lease)
    with pytest.raises(PoolClosed, match="already"):
        lease.publish(2)
    with pytest.raises(ViewRefused, match="published or aborted") as caught:
        memoryview(lease)
    assert isinstance(caught.value, BufferError)
    lease.abort()  # No effect: the slab is the reader's now.
    item.release()
    with pytest.raises(PoolClosed, match="already"):
        item.release()
    with pytest.raises(ViewRefused, match="released"):
        memoryview(item)
    with pytest.raises(PoolClosed):
        item.__dlpack__()


def test_dlpack_refuses_what_it_does_not_offer(pool: Pool) -> None:
    lease = Producer(pool).lease((4,), "uint8")
    assert lease.__dlpack_device__() == (1, 0)
    with pytest.raises(ValueError, match="stream"):
        lease.__dlpack__(stream=1)  # type: ignore[arg-type]
    with pytest.raises(ViewRefused, match="copy"):
        lease.__dlpack__(copy=True)
    with pytest.raises(ViewRefused, match="host"):
        lease.__dlpack__(dl_device=(2, 0))
    for version in (5, (1,), "ab"):
        with pytest.raises(TypeError, match="max_version=.* must be a pair of integers"):
            lease.__dlpack__(max_version=version)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [0, 3, (1 << 18) - 1])
def test_a_lease_is_written_from_any_contiguous_buffer(pool: Pool, count: int) -> None:
    values = numpy.arange(count, dtype=numpy.float32)
    lease = Producer(pool).lease(values.shape, values.dtype)
    lease.write(values)
    numpy.testing.assert_array_equal(numpy.asarray(hand_over(pool, lease)), values)


def test_writing_refuses_what_does_not_fit(pool: Pool) -> None:
    lease = Producer(pool).lease((4,), "float32")
    with pytest.raises(ValueError, match="source has 12 bytes and the lease 16"):
        lease.write(numpy.zeros(3, numpy.float32))
    strided = numpy.zeros((4, 2), numpy.float32)[:, 0]
    for source in (strided, memoryview(strided)):
        with pytest.raises(BufferError, match="source, of .* is not C-contiguous; write numpy.asc"):
            lease.write(source)
    lease.publish(1)
    with pytest.raises(PoolClosed, match="published or aborted"):
        lease.write(numpy.zeros(4, numpy.float32))


def test_writing_refuses_pointers_and_takes_any_values(pool: Pool) -> None:
    lease = Producer(pool).lease((2,), "int64")
    pointers: list[Any] = [
        numpy.array([object()] * 2),
        numpy.zeros(1, [("a", "i8"), ("b", "O")]),
        (ctypes.POINTER(ctypes.c_int) * 2)(),
    ]
    for source in pointers:
        with pytest.raises(TypeError, match="has pointers to objects of this process"):
            lease.write(source)
    values: list[Any] = [
        numpy.zeros(2, "M8[s]"),  # Has no format in the buffer protocol.
        numpy.zeros(2, [("O", "i4"), ("P", "f4")]),
        numpy.zeros(2, "complex64"),
        numpy.zeros(2, "S8"),
        (ctypes.c_int64 * 2)(),
    ]
    for source in values:
        lease.write(source)
    assert numpy.asarray(lease).tolist() == [0, 0]
