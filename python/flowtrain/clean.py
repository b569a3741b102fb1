"""Pools that runs left behind: every process that had one open is gone."""

from __future__ import annotations

from pathlib import Path

from flowtrain_core import Pool, PoolEntry, list_pools


def left_pools(prefix: str = "") -> list[PoolEntry]:
    """Pools of this user, whatever version made them, that nobody has open or is making."""
    return [
        pool
        for pool in list_pools()
        if pool.name.startswith(prefix) and not pool.alive and not _in_the_making(pool)
    ]


def remove_left_pools(prefix: str = "") -> list[str]:
    """Remove them; the names of those that were there to remove."""
    return [pool.name for pool in left_pools(prefix) if Pool.unlink(pool.name)]


def _in_the_making(pool: PoolEntry) -> bool:
    """A pool in the making has no lane yet, but a maker that lives."""
    return pool.creator_pid != 0 and Path(f"/proc/{pool.creator_pid}").exists()
