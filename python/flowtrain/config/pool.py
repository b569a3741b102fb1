"""Configuration of the pool."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from flowtrain.config.checks import positive, require
from flowtrain.config.dtypes import Dtype

Tier = Literal["host", "auto", "device", "fake"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolConfig:
    """Size of the pool, and what it holds."""

    slab_bytes: int = 1 << 20
    """Size of a slab; a record is split into as many as it needs."""
    bytes: int | None = None
    """Size of the pool over all ranks; null means `scale` times the minimum that the plans need, or
    for encoder ranks that come and go (`flow.elastic`) what `flow.plan_ahead` steps need, and at
    most a quarter of the free memory."""
    max_cells: int = 4096
    """Maximum slabs of the pool over all ranks. Each slab has a cell in the control file, which has
    further cells for segments that are being replaced."""
    scale: float = 2.0
    """Size of the pool as a multiple of the minimum, if `bytes` is null."""
    tier: Tier = "host"
    """Where rows lie: `host`, or the memory of the sending rank's `device`, in which streams write
    and read them and no rank waits for a copy. `auto` is `device` with `model.device: cuda`, except
    in runs whose encoder ranks come and go. `fake` is memory of the host that is handled as that of
    a device, for tests."""
    dtype: Dtype | None = None
    """Dtype of the rows that cross the pool, and of their gradients; null takes
    `model.compute_dtype`."""

    def __post_init__(self) -> None:
        require(
            4096 <= self.slab_bytes <= 1 << 30,
            f"pool.slab_bytes={self.slab_bytes}: it must be 4096 to {1 << 30}",
        )
        require(
            1 <= self.scale < math.inf,
            f"pool.scale={self.scale}: it must be at least 1, and finite",
        )
        positive(pool__max_cells=self.max_cells)
        require(
            self.max_cells <= 1 << 24,
            f"pool.max_cells={self.max_cells}: it must be at most {1 << 24}",
        )
        if self.bytes is not None:
            positive(pool__bytes=self.bytes)
            slabs = self.bytes // self.slab_bytes
            require(
                slabs <= self.max_cells,
                f"pool.bytes={self.bytes} with pool.slab_bytes={self.slab_bytes}: {slabs} slabs "
                f"are more than pool.max_cells={self.max_cells}; raise pool.max_cells or "
                "pool.slab_bytes",
            )
