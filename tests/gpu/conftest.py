"""Tests that need a device; without one they are skipped, with the reason."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from flowtrain_core import Pool, cuda

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def device() -> int:
    """Number of the device under test."""
    if reason := cuda.why_not():
        pytest.skip(reason)
    return 0


@pytest.fixture
def pool() -> Iterator[Pool]:
    """A pool of one 4 MiB slab, closed and gone after the test."""
    name = f"gpu-{os.getpid()}-{next(_numbers)}"
    with Pool.create(name, classes=[(4 << 20, 1)]) as pool:
        yield pool
    Pool.unlink(name)
