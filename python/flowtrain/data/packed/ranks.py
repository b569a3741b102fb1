"""The data-parallel rank of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from flowtrain.packing import PackingError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def rank_and_size(
    rank: int | None, ranks: int | None, group: ProcessGroup | None
) -> tuple[int, int]:
    """This rank, and the number of ranks."""
    if group is not None and rank is not None:
        raise PackingError(
            f"rank={rank} with a group, which has a rank for this process; give one of them"
        )
    if (rank is None) != (ranks is None):
        raise PackingError(f"rank={rank}, ranks={ranks}: give both of them or none")
    if rank is None or ranks is None:
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return 0, 1
        rank, ranks = distributed.get_rank(group), distributed.get_world_size(group)
        if rank < 0:
            raise PackingError(
                "group: this process is not in it; make the loader only in its processes"
            )
        return rank, ranks
    if not 0 <= rank < ranks:
        raise PackingError(f"rank={rank}: it must be at least 0 and less than ranks={ranks}")
    return rank, ranks
