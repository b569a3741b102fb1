"""Calls on the path of every item behave as those of a Python function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from core.processes import Spawn

from flowtrain_core import Consumer, Item, Lease, Pool, Producer


def test_parameters_are_given_by_position_and_by_name(pool: Pool) -> None:
    producer, consumer = Producer(pool), Consumer(pool)
    producer.lease((2, 3), "uint8", 1).publish(1)
    producer.lease(timeout_s=None, dtype="uint8", shape=[2, 3]).publish(key=2)
    # A name built at run time is another object than the one in the source.
    names: dict[str, Any] = {"".join(("sha", "pe")): (2, 3), "".join(("dty", "pe")): "uint8"}
    producer.lease(**names).publish(3)
    for key in (1, 2, 3):
        with consumer.get(timeout_s=30) as item:
            assert (item.key, item.shape) == (key, (2, 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.lease(), "missing required argument: 'shape'"),
        (lambda p: p.lease((1,), timeout_s=1), "missing required argument: 'dtype'"),
        (lambda p: p.lease((1,), "uint8", 1, 2), r"at most 3 arguments \(4 given\)"),
        (lambda p: p.lease((1,), "uint8", timeout=1), "unexpected keyword argument 'timeout'"),
        (lambda p: p.lease((1,), shape=(1,), dtype="uint8"), "multiple values .* 'shape'"),
        (lambda p: p.lease((1.5,), "uint8"), "float"),
        (lambda p: p.lease(7, "uint8"), "sequence of integers"),
        (lambda p: p.lease((1,), "uint8", "soon"), "real number"),
        (lambda p: p.lease((1,), "uint8").publish("seven"), "str"),
        (lambda p: Producer.__new__(Producer).lease((1,), "uint8"), "__init__"),
        (lambda p: Producer(None), "incompatible"),  # type: ignore[arg-type]
        (lambda p: Consumer(None), "incompatible"),  # type: ignore[arg-type]
        (lambda p: p.lease((1,), "uint8").write(7), r"a 'int' has no bytes.*copy_\(tensor\)"),
        (lambda p: Producer.lease(p, (1,)), "missing required argument: 'dtype'"),
        (lambda p: Producer.lease(3, (1,), "uint8"), "'int'"),
    ],
)
def test_a_wrong_call_names_its_error(
    pool: Pool, call: Callable[[Any], object], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        call(Producer(pool))


@pytest.mark.parametrize("size", [-1, 2**32, 2**70])
def test_a_dimension_beyond_32_bits_is_named(pool: Pool, size: int) -> None:
    with pytest.raises(ValueError, match=f"dimension {size} must be 0 to 4294967295"):
        Producer(pool).lease((1, size), "uint8")


def test_a_shape_that_changes_while_it_is_read_is_read_as_it_was(pool: Pool, spawn: Spawn) -> None:
    process = spawn(
        "class Emptying:\n"
        "    def __index__(self): shape.clear(); return 1\n"
        "lease = Producer(Pool.open(sys.argv[1])).lease((5, 5, 5), 'uint8', 1)\n"
        "shape = [Emptying(), 2, 3, 4]; lease.shrink(shape); print(lease.shape, shape)",
        pool.name,
    )
    assert process.line() == "(1, 2, 3, 4) []"


@pytest.mark.parametrize(
    "use",
    [
        "Producer.__new__(Producer).explain()",
        "Consumer.__new__(Consumer).try_get()",
        "Consumer.__new__(Consumer).close()",
        "Pool.__new__(Pool).name",
        "Lease.__new__(Lease).write(b'')",
        "memoryview(Item.__new__(Item))",
        "Item.__new__(Item).key",
        "Item.__new__(Item).__enter__()",
        "Item.__new__(Item).__array__()",
        "Item.__new__(Item).__dlpack__()",
        "Pool.__enter__(Item.__new__(Item))",
    ],
)
def test_an_object_without_init_is_an_error(spawn: Spawn, use: str) -> None:
    process = spawn(f"try: {use}\nexcept Exception as error: print(type(error).__name__)")
    assert process.line() == "TypeError"


def test_handles_are_not_pickled(name: str, spawn: Spawn) -> None:
    process = spawn(
        "import pickle\n"
        "with Pool.create(sys.argv[1], classes=[(4096, 1)]) as pool:\n"
        "    consumer = Consumer(pool)\n"
        "    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):\n"
        "        for each in (pool, consumer, pool.lanes()[0]):\n"
        "            try: pickle.dumps(each, protocol)\n"
        "            except TypeError as error: print('cannot pickle' in str(error))",
        name,
    )
    assert [process.line() for _ in range(18)] == ["True"] * 18


def test_their_signatures_can_be_read() -> None:
    signatures = [
        str(inspect.signature(method))
        for method in (Producer.lease, Lease.publish, Consumer.get, Item.release)
    ]
    assert signatures == [
        "(self, /, shape, dtype, timeout_s=None)",
        "(self, /, key, stream=None)",
        "(self, /, timeout_s=None)",
        "(self, /, stream=None)",
    ]
