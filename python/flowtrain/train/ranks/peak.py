"""Peak FLOP/s of the devices of a job."""

from __future__ import annotations

import torch

from flowtrain.config.layout import MODULES, RankLayout
from flowtrain.cores import available_cores
from flowtrain.cost.peak import gpu_peak_flops, measured_peak_flops
from flowtrain.train.ranks.utilization import Peaks

_SIZES = {"cpu": 512, "cuda": 8192}


def job_peaks(layout: RankLayout, device: torch.device, dtype: torch.dtype) -> Peaks:
    """Peak FLOP/s of the devices of a job. Ranks that share devices share their peak evenly.

    Args:
        layout: Its ranks.
        device: Device of this rank.
        dtype: Dtype of the training.
    """
    if device.type == "cpu":
        available = available_cores() // torch.get_num_threads()
    else:
        available = torch.cuda.device_count()
    ranks = len(layout.labels)
    all_ranks = min(ranks, max(1, available)) * peak_flops(device, dtype)
    return Peaks(
        all=all_ranks,
        of={module: all_ranks * layout.ranks_of(module) / ranks for module in MODULES},
    )


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Data-sheet peak of a known GPU in bfloat16; otherwise the rate of a large matrix product.

    Args:
        device: Device of the rank.
        dtype: Dtype of the training.
    """
    if device.type == "cuda" and dtype == torch.bfloat16:
        listed = gpu_peak_flops(torch.cuda.get_device_name(device))
        if listed is not None:
            return listed
    size = _SIZES[device.type]
    matrix = torch.ones(size, size, device=device, dtype=dtype)

    def product() -> None:
        torch.mm(matrix, matrix.t())  # As layers do; in bfloat16 CPUs are slow otherwise.
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return measured_peak_flops(product, 2.0 * size**3)
