"""Pools that runs left behind: every process that had one open is gone."""

from __future__ import annotations

from flowtrain_core import Pool, PoolEntry, list_pools


def left_pools(prefix: str = "") -> list[PoolEntry]:
    """Pools of this user, whatever version made them, that nobody has open."""
    return [pool for pool in list_pools() if pool.name.startswith(prefix) and not pool.alive]


def remove_left_pools(prefix: str = "") -> list[str]:
    """Remove them; the names of those that were there, and left, until then."""
    return [pool.name for pool in left_pools(prefix) if Pool.unlink(pool.name, only_left=True)]
