"""The torch threads of the ranks of a run."""

from __future__ import annotations

from dataclasses import replace

import torch

from flowtrain.config.schema import RunConfig
from flowtrain.cores import available_cores
from flowtrain.train.control.threads import rank_threads


def threads_of(config: RunConfig) -> int:
    """Torch threads of each rank of a run.

    If the layout is still to be chosen, the cores are shared by as many ranks as there may be
    without two on one core or GPU.
    """
    layout = config.flow.rank_layout
    if layout is not None:
        ranks = len(layout.labels)
    else:
        on_gpus = config.model.device == "cuda"
        places = torch.cuda.device_count() if on_gpus else available_cores()
        ranks = max(1, min(places, config.train.global_batch))
    return rank_threads(config.train.threads, ranks=ranks)


def with_threads(config: RunConfig) -> RunConfig:
    """The configuration with `train.threads` in numbers, so that all ranks have the same."""
    return replace(config, train=replace(config.train, threads=threads_of(config)))
