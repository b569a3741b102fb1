"""A torch world: its process group and its reductions."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from datetime import timedelta

import torch
import torch.distributed as dist

from flowtrain.train.control.activity import Activity
from flowtrain.train.control.deadline import UNLIMITED_S
from flowtrain.train.control.store import JobStore


class World:
    """Ranks that hold the same modules and process different samples.

    Args:
        name: `encoder`, `backbone`, or `colocated`.
        rank: This process's rank in the world.
        size: Number of ranks of the world.
        store: The job's store, through which the ranks find each other.
        device: Device of this rank; it determines the backend of the collectives. Ranks that share
            a CUDA device, which NCCL refuses, reduce through host memory with gloo.
        activity: Told of collectives, so that the heartbeat ends the run if one cannot complete.

    Attributes:
        reduce_on: Device of tensors in collectives.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        size: int,
        *,
        store: JobStore,
        device: torch.device,
        activity: Activity,
    ) -> None:
        self.name = name
        self.rank = rank
        self.size = size
        self.device = device
        self.activity = activity
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
        self.reduce_on = torch.device("cpu") if staged else device
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            # All ranks are on this host. Without it they listen where the host's name leads.
            os.environ.setdefault(variable, "lo")
        with activity.waiting(f"the other {name} ranks to create their process group"):
            dist.init_process_group(
                "nccl" if self.reduce_on.type == "cuda" else "gloo",
                store=group_store,
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=UNLIMITED_S),
            )

    @property
    def label(self) -> str:
        return f"{self.name}.{self.rank}"

    @property
    def replica(self) -> int:
        """Data replica whose items and documents this rank computes.

        Texts, inboxes and segments are numbered by it, too. Each rank is a replica of its own, also
        where ranks divide the states of a module.
        """
        return self.rank

    @property
    def hosts_planner(self) -> bool:
        """Whether the planner is a thread of this rank, if its world has the backbone."""
        return self.rank == 0

    @property
    def reports(self) -> bool:
        """Whether this rank reports for its world, to the other world and to the logs."""
        return self.rank == 0

    @property
    def commits(self) -> bool:
        """Whether this rank completes the checkpoints of its world."""
        return self.rank == 0

    def close(self) -> None:
        dist.destroy_process_group()

    def sum(self, values: Iterable[float]) -> list[float]:
        """Sum of each value over the ranks, in float64."""
        total = torch.tensor(list(values), dtype=torch.float64, device=self.reduce_on)
        if self.size > 1:
            self._all_reduce(total)
        return [float(value) for value in total.tolist()]

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        self._synchronize()  # Until then this rank works, and does not wait.
        with self.activity.waiting(f"the other {self.name} ranks in a collective", "ranks"):
            dist.all_reduce(tensor)
            self._synchronize()

    def _synchronize(self) -> None:
        """Wait for the device: NCCL's collectives run on it after the call has returned."""
        if self.reduce_on.type == "cuda":
            torch.cuda.synchronize(self.device)


def _is_shared(store: dist.Store, rank: int, size: int, device: torch.device) -> bool:
    """Whether two ranks of the world have the same device; the same on every rank."""
    store.set(f"device/{rank}", str(torch.cuda.get_device_properties(device).uuid))
    uuids = {store.get(f"device/{other}") for other in range(size)}
    return len(uuids) < size
