"""One of the two torch worlds: its ranks, and what they reduce among themselves."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import timedelta

import torch
import torch.distributed as dist

from flowtrain.train.control.heartbeat import UNLIMITED_S, Activity
from flowtrain.train.control.store import Board

_BUCKET_BYTES = 64 << 20


class World:
    """Ranks that hold the same module and differ in the samples they see.

    Args:
        name: `encoder` or `backbone`.
        rank: This process's rank in the world.
        size: Ranks of the world.
        board: The job's board, over which the ranks find each other.
        device: Device of this rank; it chooses the collectives' backend. Where ranks of the world
            share a CUDA device, which NCCL refuses, they reduce through host memory by gloo.
        activity: Told of collectives: the heartbeat ends those that cannot end.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        size: int,
        *,
        board: Board,
        device: torch.device,
        activity: Activity,
    ) -> None:
        self.name = name
        self.rank = rank
        self.size = size
        self.device = device
        self._activity = activity
        store = board.world(name)
        with activity.waiting(f"the other {name} ranks to say their device"):
            staged = device.type == "cuda" and _is_shared(store, rank, size, device)
        if staged and rank == 0:
            print(
                f"{name}: {size} ranks share a CUDA device, so collectives go "
                "through host memory by gloo; give each rank a device of its own for NCCL",
                file=sys.stderr,
                flush=True,
            )
        # Where tensors are during a collective.
        self._common = torch.device("cpu") if staged else device
        with activity.waiting(f"the other {name} ranks to make their process group"):
            dist.init_process_group(
                "nccl" if self._common.type == "cuda" else "gloo",
                store=store,
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=UNLIMITED_S),
            )

    @property
    def label(self) -> str:
        return f"{self.name}.{self.rank}"

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def close(self) -> None:
        dist.destroy_process_group()

    def sum(self, values: Iterable[float]) -> list[float]:
        """Sum of each value over the ranks, in float64."""
        total = torch.tensor(list(values), dtype=torch.float64, device=self._common)
        if self.size > 1:
            self._all_reduce(total)
        return [float(value) for value in total.tolist()]

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Sum each gradient over the ranks, in place.

        A rank without a gradient contributes zeros, so every rank must call this in the same
        steps. Gradients are of (sum of losses) / N with the global N, hence a sum, no mean.
        """
        if self.size == 1:
            return
        bucket: list[torch.Tensor] = []
        held = 0
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if bucket and (held >= _BUCKET_BYTES or bucket[0].dtype != parameter.grad.dtype):
                self._sum_bucket(bucket)
                bucket, held = [], 0
            bucket.append(parameter.grad)
            held += parameter.grad.numel() * parameter.grad.element_size()
        if bucket:
            self._sum_bucket(bucket)

    def _sum_bucket(self, tensors: list[torch.Tensor]) -> None:
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).to(self._common)
        self._all_reduce(flat)
        for tensor, summed in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(summed.view_as(tensor))

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        self._synchronize()  # What this rank still computes is work.
        with self._activity.waiting(f"the other {self.name} ranks in a collective"):
            dist.all_reduce(tensor)
            self._synchronize()

    def _synchronize(self) -> None:
        """Wait for the device, on which NCCL's collectives run after their call has returned."""
        if self._common.type == "cuda":
            torch.cuda.synchronize(self.device)


def _is_shared(store: dist.Store, rank: int, size: int, device: torch.device) -> bool:
    """Whether two ranks of the world have the same device; every rank comes to the same answer."""
    store.set(f"device/{rank}", str(torch.cuda.get_device_properties(device).uuid))
    uuids = {store.get(f"device/{other}") for other in range(size)}
    return len(uuids) < size
