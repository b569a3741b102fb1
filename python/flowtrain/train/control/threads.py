"""The torch threads of a rank."""

from __future__ import annotations

import os
from dataclasses import replace

import torch

from flowtrain.config.schema import RunConfig
from flowtrain.cores import available_cores


def rank_threads(config: RunConfig) -> int:
    """Torch threads of each rank.

    They are `train.threads`, or else `OMP_NUM_THREADS`, or else the rank's share of the cores. If
    the layout is still to be chosen, the cores are shared by as many ranks as there may be without
    two on one core or GPU.
    """
    if config.train.threads:
        return config.train.threads
    # A list is for nested parallel regions; OpenMP ignores what is no number as well.
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if given.isdigit() and int(given) > 0:
        return int(given)
    cores = available_cores()
    layout = config.flow.rank_layout
    if layout is not None:
        ranks = len(layout.labels)
    else:
        places = torch.cuda.device_count() if config.model.device == "cuda" else cores
        ranks = max(1, min(places, config.train.global_batch))
    return max(1, cores // ranks)


def with_threads(config: RunConfig) -> RunConfig:
    """The configuration with `train.threads` in numbers, so that all ranks have the same."""
    return replace(config, train=replace(config.train, threads=rank_threads(config)))
