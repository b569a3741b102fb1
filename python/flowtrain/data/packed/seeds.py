"""Seeds of what workers draw at random."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import torch


def seed_of(*parts: int) -> int:
    """A seed of 64 bits for a row of numbers, each of at least 0.

    Rows of as many numbers below 2**32 have seeds of their own, as nearly as 64 bits allow. Others
    may share one: zeros at the end of up to four numbers do not count, and 2**32 is read as 0, 1.
    """
    return int(numpy.random.SeedSequence(parts).generate_state(1, numpy.uint64)[0])


@contextmanager
def drawing_from(seed: int) -> Iterator[None]:
    """Let `random`, NumPy and torch draw from a seed, and then go on from where they were."""
    state, of_numpy, of_torch = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    # Of the CPU alone: torch.manual_seed also queues a call for every device, each time.
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(state)
        numpy.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)
