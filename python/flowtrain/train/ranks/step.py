"""Dropout, inference, and delays for tests, in the steps of both modules."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def dropout_of(device: torch.device, seed: int, step: int, *place: int) -> Iterator[None]:
    """Within the block, a forward pass draws the same numbers in each recomputation and rerun.

    Behind it the random numbers of the process go on as if there had been no pass: the process may
    be that of a loop of the caller.

    Args:
        device: Device of the pass.
        seed: `train.seed`.
        step: Step of the pass.
        place: What the pass computes: the item of the encoder, or rank and slot of the backbone.
    """
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(hash((seed, step, *place)) & (2**63 - 1))
        yield


@contextmanager
def inference(module: torch.nn.Module) -> Iterator[None]:
    """Within the block, the module computes without gradients and dropout."""
    trained = [part for part in module.modules() if part.training]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        # A loop of the caller may have set some of them to `eval` itself.
        for part in trained:
            part.training = True


class Delays:
    """Random pauses before actions, so that tests meet orders that rarely happen.

    Args:
        limit_s: Seconds that a pause takes at most.
        seed: Seed of the pauses.
    """

    def __init__(self, limit_s: float, seed: str) -> None:
        self._limit_s = limit_s
        self._random = random.Random(seed)

    def pause(self) -> None:
        if self._limit_s:
            time.sleep(self._random.uniform(0, self._limit_s))
