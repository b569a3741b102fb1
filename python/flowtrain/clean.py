"""Pools left behind: no live process has them open."""

from __future__ import annotations

from flowtrain_core import Pool, PoolEntry, list_pools


def left_pools(prefix: str = "") -> list[PoolEntry]:
    """Pools of this user, of any version, that no process has open."""
    return [pool for pool in list_pools() if pool.name.startswith(prefix) and not pool.alive]


def remove_left_pools(prefix: str = "") -> list[str]:
    """Remove pools left behind. Returns the names of those that this call removed."""
    return [pool.name for pool in left_pools(prefix) if Pool.unlink(pool.name, only_left=True)]
