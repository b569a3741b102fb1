"""Seeds of random numbers in workers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import torch


def derive_seed(*parts: int) -> int:
    """A 64-bit seed from a row of numbers, each at least 0.

    Different rows of the same length, with numbers below 2**32, have different seeds, up to
    collisions of 64 bits. Other rows may share a seed: in rows of up to four numbers trailing zeros
    do not count, and 2**32 is read as 0, 1.
    """
    return int(numpy.random.SeedSequence(parts).generate_state(1, numpy.uint64)[0])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed `random`, NumPy and torch within the block, and restore their states after it."""
    state, of_numpy, of_torch = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    # The CPU alone: torch.manual_seed would also queue a call for every device.
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
        numpy.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)
