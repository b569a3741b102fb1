"""The GPUs of this machine as a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flowtrain.cost.accelerators import device_accelerator
from flowtrain.plan.cluster.groups import Cluster
from flowtrain.plan.cluster.known import node_of


def local_cluster() -> Cluster:
    """One node with the GPUs of this machine.

    Raises:
        ValueError: There is no GPU, or `cluster_of` knows no server with such GPUs.
    """
    return cluster_of(*_devices())


def cluster_of(names: Sequence[str], memory_bytes: int) -> Cluster:
    """One node with some GPUs, and the links of a known server with such GPUs.

    Args:
        names: Name of each GPU, as its driver gives it.
        memory_bytes: Memory of the smallest.

    Raises:
        ValueError: The GPUs differ, or their type or links are not known.
    """
    if len(set(names)) > 1:
        raise ValueError(f"cluster 'local': {', '.join(names)}: the GPUs differ; {_OTHERWISE}")
    known = device_accelerator(names[0])
    if known is None:
        raise ValueError(f"cluster 'local': '{names[0]}' is not a known type; {_OTHERWISE}")
    group = node_of(known.name).with_gpus(len(names))
    gpu = replace(known, memory_bytes=memory_bytes, source=f"{known.source}, of this machine")
    return Cluster(groups=(replace(group, gpu=gpu),))


_OTHERWISE = "describe the cluster, as NODESxGPUSxTYPE or in a cluster file"


def _devices() -> tuple[list[str], int]:
    """Names of the GPUs, and the memory of the smallest."""
    try:
        import pynvml
    except ModuleNotFoundError as error:
        raise ValueError(
            "cluster 'local': nvidia-ml-py is needed to see GPUs; pip install nvidia-ml-py, "
            f"or {_OTHERWISE}"
        ) from error
    try:
        pynvml.nvmlInit()
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(number)
            for number in range(pynvml.nvmlDeviceGetCount())
        ]
        names = [pynvml.nvmlDeviceGetName(handle) for handle in handles]
        sizes = [pynvml.nvmlDeviceGetMemoryInfo(handle).total for handle in handles]
    except pynvml.NVMLError as error:
        raise ValueError(f"cluster 'local': no GPU is seen ({error}); {_OTHERWISE}") from error
    if not names:
        raise ValueError(f"cluster 'local': no GPU is seen; {_OTHERWISE}")
    return names, min(sizes)
