"""Every benchmark can start: its modules import, and its C++ programs compile and answer."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from peers.queues import Queues
from peers.raw_futex import RawFutex

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = sorted(
    ".".join(file.relative_to(BENCHMARKS).with_suffix("").parts)
    for file in BENCHMARKS.rglob("*.py")
    if file.name != "__init__.py"
)


@pytest.mark.parametrize("module", MODULES)
def test_a_benchmark_imports(module: str) -> None:
    assert Path(importlib.import_module(module).__file__ or "").is_relative_to(BENCHMARKS)


def test_queues_of_others_compile_and_move_descriptors() -> None:
    assert Queues.missing() is None
    with Queues() as queues:
        assert queues.lacks("vyukov") is None
        assert queues.lacks("nothing") is not None
        for queue in ("vyukov", "boost_queue", "message_queue"):
            if queues.lacks(queue) is None:
                assert queues.flow(queue, 1, 1, 1, 0.05).value > 0
                assert queues.round_trip(queue, 0.05).value > 0


def test_the_bare_futex_compiles_and_wakes_a_sleeper() -> None:
    assert RawFutex.missing() is None
    with RawFutex() as futex:
        ages = futex.ages_ns(rounds=5, pause_s=1e-3, core=0, sleeper=0)
    assert len(ages) == 5
    assert min(ages) > 0
