"""A torch world: its ranks and their reductions."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist

from flowtrain.train.control.activity import Activity


class World:
    """Ranks that hold the same modules and process different samples.

    More than one reduce in the default process group of torch, which the program has made, or a
    loop of the caller.

    Args:
        name: `encoder`, `backbone`, or `colocated`.
        rank: This process's rank in the world.
        size: Number of ranks of the world.
        device: Device of this rank.
        activity: Told of collectives, so that the heartbeat ends the run if one cannot complete.
        reduce_on: Device of tensors in collectives; None for that of this rank.
        makes_groups: Whether other groups are made of its ranks, such as one with a timeout of its
            own. The ranks of a loop have the group that it has made, and its timeout.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        size: int,
        *,
        device: torch.device,
        activity: Activity,
        reduce_on: torch.device | None = None,
        makes_groups: bool = True,
    ) -> None:
        self.name = name
        self.rank = rank
        self.size = size
        self.device = device
        self.activity = activity
        self.reduce_on = device if reduce_on is None else reduce_on
        self.makes_groups = makes_groups

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
