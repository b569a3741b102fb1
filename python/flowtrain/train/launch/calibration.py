"""GPUs for the ranks of a run, and a measurement of the speed of a rank in under 3 seconds."""

from __future__ import annotations

import math
import statistics
import time

import torch

from flowtrain.config.checks import ConfigError
from flowtrain.config.schema import RunConfig
from flowtrain.cost.accelerators import Accelerator, device_accelerator
from flowtrain.cost.rates import Rates
from flowtrain.cost.timing import DataSheetTiming
from flowtrain.cost.topology import Link, Topology
from flowtrain.models.dtypes import DTYPES
from flowtrain.plan.cluster import Cluster, NodeGroup
from flowtrain.plan.cluster.local import cluster_of
from flowtrain.plan.pools import Measured
from flowtrain.train.ranks.peak import peak_flops

# Share of the rate of copies at which two ranks sum gradients by gloo over loopback, all that they
# wait for at the end of a step included: a typical value.
_REDUCE_SHARE = 0.06
# Typical of GPUs that are connected by PCIe 4.0.
_TYPICAL_LINK = Link(latency_s=5.7e-6, bytes_per_s=25e9)
_TYPICAL_MEMORY_BYTES_PER_S = 1e12

_COPY_BYTES = 64 << 20
_COPIES = 5
_PASSES = 20


def core_rates(dtype: torch.dtype, *, threads: int) -> Rates:
    """Measured rates of a rank with so many torch threads, each on a core of its own."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        flops, memory = peak_flops(torch.device("cpu"), dtype), _copy_rate()
        return Rates(
            flops=flops,
            memory_bytes=memory,
            pass_s=_pass_s(),
            reduce_bytes=_REDUCE_SHARE * memory,
        )
    finally:
        torch.set_num_threads(before)


def visible_gpus(config: RunConfig) -> tuple[Cluster, Measured | None]:
    """The GPUs that torch sees, and times on them where no data sheet has any.

    These are estimated from the measured rate of a large matrix product, if the type of the GPUs
    or their links are not known, or the run is not in bfloat16; `flow.profile` does without.

    Raises:
        ConfigError: torch sees no GPU.
    """
    count = torch.cuda.device_count()
    if count == 0:
        raise ConfigError(
            "model.device=cuda: torch sees no CUDA device; `flowtrain doctor` says why, and "
            "model.device=cpu does without"
        )
    devices = [torch.cuda.get_device_properties(number) for number in range(count)]
    names = [device.name for device in devices]
    memory_bytes = min(device.total_memory for device in devices)
    try:
        cluster = cluster_of(names, memory_bytes)
        if config.model.pass_dtype == "bfloat16" or config.flow.profile is not None:
            return cluster, None
    except ValueError:
        cluster = None
    dtype = DTYPES[config.model.pass_dtype]
    flops = min(
        peak_flops(torch.device("cuda", names.index(name)), dtype) for name in dict.fromkeys(names)
    )
    if cluster is None:
        cluster = _unknown_cluster(names, memory_bytes, flops)
    (group,) = cluster.groups
    timing = DataSheetTiming(
        flops_per_s=flops,
        memory_bytes_per_s=group.gpu.hbm_bytes_per_s,
        itemsize=dtype.itemsize,
        extrapolates=True,
    )
    return cluster, Measured(timing=timing, dtype=config.model.pass_dtype, source="calibration")


def _unknown_cluster(names: list[str], memory_bytes: int, flops: float) -> Cluster:
    """One node of GPUs of which no server is known."""
    known = device_accelerator(names[0])
    gpu = Accelerator(
        name=names[0] if known is None else known.name,
        memory_bytes=memory_bytes,
        bf16_flops=flops,
        hbm_bytes_per_s=_TYPICAL_MEMORY_BYTES_PER_S if known is None else known.hbm_bytes_per_s,
        source="peak: measured; bandwidth: a typical value" if known is None else known.source,
    )
    topology = Topology(devices_per_node=len(names), inside=_TYPICAL_LINK, between=_TYPICAL_LINK)
    return Cluster(
        groups=(NodeGroup(nodes=1, gpu=gpu, topology=topology, source="typical of PCIe 4.0"),)
    )


def _copy_rate() -> float:
    """Bytes per second that a rank reads and writes in copies."""
    source = torch.zeros(_COPY_BYTES, dtype=torch.uint8)
    target = torch.empty_like(source)
    best = math.inf
    for _ in range(_COPIES):
        started = time.perf_counter()
        target.copy_(source)
        best = min(best, time.perf_counter() - started)
    return 2 * _COPY_BYTES / best


def _pass_s() -> float:
    """Seconds of a pass of a small layer.

    Layers of transformers call about twice as many operators as one of torch, so that a pass of
    theirs takes as long as both passes of this.
    """
    layer = torch.nn.TransformerEncoderLayer(64, 2, 128, dropout=0.0, batch_first=True)
    row = torch.randn(1, 8, 64, requires_grad=True)
    seconds = []
    for _ in range(_PASSES):
        started = time.perf_counter()
        layer(row).sum().backward()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)
