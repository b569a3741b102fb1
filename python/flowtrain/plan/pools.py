"""The pools of GPUs of a cluster, with the times of layers on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flowtrain.config.checks import require
from flowtrain.config.dtypes import Dtype
from flowtrain.cost.timing import Timing
from flowtrain.plan.cluster import Cluster
from flowtrain.plan.space import GpuPool


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Measured times of layers on one type of GPU.

    Attributes:
        timing: The times.
        dtype: Dtype in which they were measured.
        source: Where they are from.
    """

    timing: Timing
    dtype: str
    source: str


def pools_of(
    cluster: Cluster,
    dtype: Dtype,
    measured: Mapping[str, Measured] | None = None,
    *,
    extrapolate: bool = False,
) -> tuple[GpuPool, ...]:
    """The pools of a cluster.

    Args:
        cluster: The cluster.
        dtype: Dtype of the passes.
        measured: Measured times by the name of the type; the times on other types are estimated
            from their data sheets.
        extrapolate: Whether these estimates hold for rows of any size.

    Raises:
        ConfigError: Measured times are of a type that the cluster lacks, or of another dtype; or
            times have to be estimated in another dtype than that of the data sheets, bfloat16.
    """
    given = dict(measured or {})
    for name, found in given.items():
        require(
            name in cluster.pools,
            f"{found.source}: the times of {name} were measured, and cluster '{cluster}' has none; "
            "plan for a cluster with it",
        )
        require(
            found.dtype == dtype,
            f"{found.source}: times were measured in {found.dtype}, and "
            f"model.compute_dtype={dtype}; profile in that dtype",
        )
    estimated = [name for name in cluster.pools if name not in given]
    require(
        not estimated or dtype == "bfloat16",
        f"model.compute_dtype={dtype}: the peaks of {', '.join(estimated)} are those of bfloat16; "
        "set model.compute_dtype=bfloat16, or give --profile with measured times",
    )
    pools = []
    for group in cluster.groups:
        gpu = group.gpu
        times = given.get(gpu.name)
        pools.append(
            GpuPool(
                gpu_type=gpu.name,
                gpus=group.gpus,
                topology=group.topology,
                memory_bytes=gpu.memory_bytes,
                memory_bytes_per_s=gpu.hbm_bytes_per_s,
                flops_per_s=gpu.bf16_flops,
                timing=times.timing if times else gpu.timing(extrapolates=extrapolate),
                timing_source=times.source if times else f"data sheet: {gpu.source}",
                between_modules=cluster.between_modules if len(cluster.groups) > 1 else None,
            )
        )
    return tuple(pools)
