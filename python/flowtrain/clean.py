"""Pools left behind: no live process has them open."""

from __future__ import annotations

import time

from flowtrain_core import Pool, PoolEntry, list_pools

_POLL_S = 0.05


def left_pools(prefix: str = "") -> list[PoolEntry]:
    """Pools of this user, of any version, that no process has open."""
    return [pool for pool in list_pools() if pool.name.startswith(prefix) and not pool.alive]


def remove_left_pools(prefix: str = "") -> list[str]:
    """Remove pools left behind. Returns the names of those that this call removed."""
    return [pool.name for pool in left_pools(prefix) if Pool.unlink(pool.name, only_left=True)]


def remove_ended_pool(name: str, *, timeout_s: float) -> None:
    """Wait until a pool is closed by its creator, and remove it if that dies before.

    Args:
        name: Name of the pool.
        timeout_s: Timeout, after which a pool still in use stays.
    """
    end = time.monotonic() + timeout_s
    while any(pool.name == name for pool in list_pools()):
        if Pool.unlink(name, only_left=True) or time.monotonic() > end:
            return
        time.sleep(_POLL_S)
