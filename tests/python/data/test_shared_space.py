"""Arrays of worker processes in shared memory: nothing is overwritten, lost or kept."""

from __future__ import annotations

import multiprocessing
import random
import threading
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flowtrain.data import worker_process
from flowtrain.data.shared_space import SharedSpace
from flowtrain.data.workers import WorkerPool

KIB = 1 << 10


@dataclass
class Filled:
    array: NDArray[Any]
    value: Any


class Arrays:
    def filled(self, value: int, kib: int) -> Filled:
        return Filled(np.full((kib, KIB // 4), value, dtype=np.float32), value)

    def lock(self, kib: int) -> Filled:
        return Filled(np.zeros((kib, KIB)), threading.Lock())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "SharedSpace", partial(SharedSpace, 100 * KIB))


def check(answer: Filled, value: int, kib: int) -> None:
    assert answer.value == value and answer.array.dtype == np.float32
    np.testing.assert_array_equal(answer.array, np.full((kib, KIB // 4), value))


@pytest.mark.usefixtures("small")
def test_an_array_keeps_its_place_as_long_as_it_lives(capsys: pytest.CaptureFixture[str]) -> None:
    with WorkerPool(Arrays, 1, fork=True) as pool:
        held = pool.submit("filled", 1, 40).result(60)
        for value in range(2, 30):
            check(pool.submit("filled", value, 40).result(60), value, 40)
        check(held, 1, 40)
    check(held, 1, 40)  # Also when the process is gone.
    del held
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("fork", [True, False])
def test_arrays_without_a_place_arrive_and_are_told_once(
    fork: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with WorkerPool(Arrays, 1, fork=fork) as pool:
        calls = [pool.submit("filled", value, 40) for value in range(5)]
        for value, call in enumerate(calls):
            check(call.result(60), value, 40)
        check(pool.submit("filled", 7, 101).result(60), 7, 101)
        assert capsys.readouterr().err.count("of pixels found no place in its 102400 bytes") == 1
        del calls, call
        check(pool.submit("filled", 8, 100).result(60), 8, 100)


def test_places_of_random_lives_never_overlap_and_all_return() -> None:
    space = SharedSpace(1000 * KIB)
    draw = random.Random(0)
    held: list[tuple[int, int, Filled]] = []
    for value in range(600):
        kib = draw.randint(16, 90)
        held.append((value, kib, space.get(space.put(Arrays().filled(value, kib)))))
        draw.shuffle(held)
        while len(held) > draw.randint(5, 25):
            held.pop()
        for given, size, answer in held:
            check(answer, given, size)
    spilled_bytes = space.spilled_bytes
    assert 0 < spilled_bytes < 300 * 90 * KIB
    held.clear()
    del answer
    space.put(Arrays().filled(0, 1000))
    assert space.spilled_bytes == spilled_bytes


@pytest.mark.usefixtures("small")
def test_an_answer_that_cannot_be_sent_keeps_no_place(capsys: pytest.CaptureFixture[str]) -> None:
    with WorkerPool(Arrays, 1, fork=True) as pool:
        for _ in range(3):
            with pytest.raises(RuntimeError, match="TypeError: cannot pickle"):
                pool.submit("lock", 6).result(60)
        check(pool.submit("filled", 8, 100).result(60), 8, 100)
    assert capsys.readouterr().err == ""


def test_copies_in_a_forked_process_return_no_place() -> None:
    space = SharedSpace(100 * KIB)
    held = [space.get(space.put(Arrays().filled(1, 60)))]
    other = multiprocessing.get_context("fork").Process(target=held.clear)
    other.start()
    other.join(60)
    assert other.exitcode == 0
    space.put(Arrays().filled(2, 60))
    assert space.spilled_bytes == 60 * KIB
    check(held[0], 1, 60)
