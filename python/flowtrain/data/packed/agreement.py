"""Compares the plans of all ranks, which each rank computes on its own."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import distributed

from flowtrain.data.packed.source import Place
from flowtrain.packing import FormedStep, PackingError
from flowtrain_core import __version__

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, ProcessGroupGloo


class Agreement:
    """Compares the steps of this rank with those of the other ranks.

    Uses a gloo group of its own, so that it never mixes with the collectives of the loop, needs no
    device, and works in any thread. The group ends with `close`, or with this object.

    Args:
        group: The data-parallel ranks; None for all ranks. Each rank makes its own object, at the
            same point of the program.
        timeout_s: Timeout for the other ranks.
        settings: Values that must be equal on all ranks.

    Raises:
        RuntimeError: A rank has ended, or the timeout expired.
    """

    def __init__(
        self, group: ProcessGroup | None, *, timeout_s: float, settings: dict[str, Any]
    ) -> None:
        self._ranks = distributed.get_world_size(group)
        try:
            self._group: Any = _connected(group, timedelta(seconds=timeout_s))
        except RuntimeError as error:
            raise RuntimeError(
                f"not all ranks made their loader within timeout_s={timeout_s}: a rank has ended, "
                f"or makes no loader; for a loader on one rank alone, give rank and ranks ({error})"
            ) from error
        self._timeout_s = timeout_s
        self._made_with = {"flowtrain": __version__, "numpy": numpy.__version__, **settings}

    def check(self, place: Place, step: FormedStep | None, content: int = 0) -> None:
        """Wait for the other ranks and compare the next step.

        Args:
            place: The place before the step.
            step: The step of all ranks; None at the end of the epoch.
            content: Checksum of the values measured in the stream up to the step.

        Raises:
            PackingError: A rank has another step; raised on every rank, with the difference. Or
                this object was closed.
            RuntimeError: A rank has ended, or the timeout expired.
        """
        mine = {
            **self._made_with,
            **{name: place[name] for name in ("epoch", "step", "microbatch")},
            "samples_of_step": 0 if step is None else len(step.keys),
            "tokens_of_step": 0 if step is None else int(step.plan.tokens.sum()),
            "checksum_of_step": 0 if step is None else step.checksum(content),
        }
        text = json.dumps(mine).encode()
        digest = int.from_bytes(
            hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True
        )
        try:
            digests = self._gathered(torch.tensor([digest, len(text)]))
            if all(torch.equal(other, digests[0]) for other in digests):
                return
            longest = max(int(length) for _, length in digests)
            texts = self._gathered(torch.tensor(list(text.ljust(longest)), dtype=torch.uint8))
        except RuntimeError as error:
            raise RuntimeError(
                f"step {place['step']} of epoch {place['epoch']}: the ranks could not compare "
                f"their plans within timeout_s={self._timeout_s}: a rank has ended, or does not "
                f"iterate its loader; for a loader on one rank alone, give rank and ranks ({error})"
            ) from error
        every = [json.loads(bytes(other.tolist())) for other in texts]
        first = every[0]
        rank, name = _difference(every)
        raise PackingError(
            f"step {first['step']} of epoch {first['epoch']}: rank {rank} has {name}="
            f"{every[rank].get(name)}, but rank 0 has {first.get(name)}; give the loader of every "
            "rank the same arguments and the whole data set, neither split nor seeded by rank"
        )

    def close(self) -> None:
        """Close the connections to the other ranks."""
        self._group = None

    def _gathered(self, mine: torch.Tensor) -> list[torch.Tensor]:
        if self._group is None:
            raise PackingError("the ranks can no longer compare their plans: the loader was closed")
        every = [torch.empty_like(mine) for _ in range(self._ranks)]
        self._group.allgather([every], [mine]).wait()
        return every


def _connected(group: ProcessGroup | None, timeout: timedelta) -> ProcessGroupGloo:
    """A gloo group of the same ranks that torch does not register: it ends with its last reference.

    `new_group` with local synchronization names a group after the number of existing groups. A
    group made after another was destroyed could have its name, and then reads its stale addresses.
    """
    store = distributed.distributed_c10d._get_default_store()
    rank = distributed.get_rank(group)
    ranks = distributed.get_process_group_ranks(group)
    name = f"flowtrain/{hashlib.blake2b(json.dumps(ranks).encode(), digest_size=8).hexdigest()}"
    # The same on all ranks, as all make their loaders in the same order.
    number = store.add(f"{name}/made/{rank}", 1)
    prefixed = distributed.PrefixStore(f"{name}/{number}", store)
    made = distributed.ProcessGroupGloo(prefixed, rank, len(ranks), timeout)
    # A rank that drops the group at once would end the connections that others still make.
    prefixed.set(f"connected/{rank}", "")
    prefixed.wait([f"connected/{other}" for other in range(len(ranks))], timeout)
    return made


def _difference(every: list[dict[str, Any]]) -> tuple[int, str]:
    """The first rank that differs from rank 0, and the name of the value that differs."""
    names = dict.fromkeys(name for rank in every for name in rank)
    return next(
        (rank, name)
        for name in names
        for rank, other in enumerate(every)
        if other.get(name) != every[0].get(name)
    )
