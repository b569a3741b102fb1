"""Configuration of the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flowtrain.config.checks import not_negative, positive, require

_MAX_THREADS = 1024  # More than a machine has cores, and fewer than it refuses to start.

LOGIT_BYTES = 1 << 28
"""Default of `train.logit_bytes`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Number, size and seed of the steps."""

    steps: int = 0
    """Optimizer steps of the whole run; 0 takes `epochs`."""
    epochs: float = 0.0
    """Epochs of the whole run, in place of `steps`: as many steps as draw so many samples, rounded
    up. Dropped samples are replaced by those of the next epoch."""
    global_batch: int = 32
    """Samples per step, over all ranks."""
    microbatch_tokens: int = 4096
    """Maximum tokens per packed microbatch, and so per sample."""
    logit_bytes: int = LOGIT_BYTES
    """Maximum bytes of the float32 logits that are held at once. A microbatch with more has its
    output head and cross entropy computed in chunks of target tokens, and once more in the backward
    pass."""
    seed: int = 0
    """Seed of initial weights, data order and dropout."""
    nonfinite: Literal["abort", "skip"] = "abort"
    """Handling of a step whose loss or gradient is not finite."""
    threads: int = 0
    """Torch threads per rank; 0 takes `OMP_NUM_THREADS`, or else divides the cores that affinity
    and cgroup allow among the ranks."""

    def __post_init__(self) -> None:
        not_negative(train__steps=self.steps, train__epochs=self.epochs)
        require(
            (self.steps == 0) != (self.epochs == 0),
            f"train.steps={self.steps}, train.epochs={self.epochs:g}: give exactly one of the two",
        )
        positive(
            train__global_batch=self.global_batch,
            train__microbatch_tokens=self.microbatch_tokens,
            train__logit_bytes=self.logit_bytes,
        )
        require(
            0 <= self.threads <= _MAX_THREADS,
            f"train.threads={self.threads}: it must be from 0 to {_MAX_THREADS}",
        )
        require(
            0 <= self.seed < 1 << 63,
            f"train.seed={self.seed}: it must be at least 0 and less than 2^63",
        )
