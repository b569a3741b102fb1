"""The torch threads of a rank."""

from __future__ import annotations

import os

from flowtrain.cores import available_cores


def rank_threads(given: int, *, ranks: int) -> int:
    """Torch threads of each rank.

    Args:
        given: `train.threads`; 0 takes `OMP_NUM_THREADS`, or else the rank's share of the cores.
        ranks: Ranks that share the cores.
    """
    if given:
        return given
    # A list is for nested parallel regions; OpenMP ignores what is no number as well.
    omp = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if omp.isdigit() and int(omp) > 0:
        return int(omp)
    return max(1, available_cores() // ranks)
