"""A unique pool name for each test, and processes that do not outlive it."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator

import pytest
from core.processes import Process, Spawn

from flowtrain_core import Pool

_numbers = itertools.count()


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts `Process(code, *args)`. Kills the processes that still run at the end of the test."""
    processes: list[Process] = []

    def start(code: str, *args: object, env: dict[str, str] | None = None) -> Process:
        processes.append(Process(code, *args, env=env))
        return processes[-1]

    yield start
    for process in processes:
        process.end()


@pytest.fixture
def name() -> Iterator[str]:
    """A unique pool name. Its folder is removed after the test."""
    name = f"test-{os.getpid()}-{next(_numbers)}"
    yield name
    Pool.unlink(name)


@pytest.fixture
def pool(name: str) -> Iterator[Pool]:
    """A small pool: four slabs of 64 KiB, two of 1 MiB."""
    with Pool.create(name, classes=[(1 << 16, 4), (1 << 20, 2)], label="main") as pool:
        yield pool


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], None]:
    """Waits until a condition holds."""

    def wait(condition: Callable[[], object]) -> None:
        end = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < end, "it never came true"
            time.sleep(0.005)

    return wait
