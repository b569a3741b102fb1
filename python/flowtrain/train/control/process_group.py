"""The process group of a world, in processes that are ours alone."""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from flowtrain.train.control.activity import Activity
from flowtrain.train.control.deadline import UNLIMITED_S
from flowtrain.train.control.interface import interface_of
from flowtrain.train.control.store import JobStore
from flowtrain.train.control.world import World


def start_world(
    name: str,
    rank: int,
    size: int,
    *,
    store: JobStore,
    device: torch.device,
    activity: Activity,
    interface: str = "",
) -> World:
    """A world, whose ranks are the default process group of torch from now on.

    Ranks that share a CUDA device, which NCCL refuses, reduce through host memory with gloo.

    Args:
        name: `encoder`, `backbone`, or `colocated`.
        rank: This process's rank in the world.
        size: Number of ranks of the world.
        store: The job's store, through which the ranks find each other.
        device: Device of this rank; it determines the backend of the collectives.
        activity: As for `World`.
        interface: Address of this host that ranks on other hosts reach; empty if there are none.
    """
    group_store = store.process_group_store(name)
    with activity.waiting(f"the other {name} ranks to name their device"):
        staged = device.type == "cuda" and _is_shared(group_store, rank, size, device)
    if staged and rank == 0:
        print(
            f"{name}: {size} ranks share a CUDA device, so collectives go "
            "through host memory by gloo; give each rank a device of its own for NCCL",
            file=sys.stderr,
            flush=True,
        )
    reduce_on = torch.device("cpu") if staged else device
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        # Without it ranks listen where the host's name leads.
        if variable not in os.environ:
            os.environ[variable] = interface_of(interface) if interface else "lo"
    with activity.waiting(f"the other {name} ranks to create their process group"):
        dist.init_process_group(
            "nccl" if reduce_on.type == "cuda" else "gloo",
            store=group_store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=UNLIMITED_S),
        )
    return World(name, rank, size, device=device, activity=activity, reduce_on=reduce_on)


def _is_shared(store: dist.Store, rank: int, size: int, device: torch.device) -> bool:
    """Whether two ranks of the world have the same device; the same on every rank."""
    store.set(f"device/{rank}", str(torch.cuda.get_device_properties(device).uuid))
    uuids = {store.get(f"device/{other}") for other in range(size)}
    return len(uuids) < size
