"""Ranks compare what they plan: each computes it alone, and must come to the same."""

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
    """Compares this rank's steps with those of the others.

    Over a gloo group of its own, so that it meets neither the collectives of the loop nor a device,
    and the loader may be read by any thread. The group ends with `close`, or with this object.

    Args:
        group: The data-parallel ranks, of which each makes its own at the same point of its
            program; None for all ranks.
        timeout_s: Timeout for the other ranks.
        made_with: What must be equal on all ranks throughout.

    Raises:
        RuntimeError: A rank has ended, or did not come in time.
    """

    def __init__(
        self, group: ProcessGroup | None, *, timeout_s: float, made_with: dict[str, Any]
    ) -> None:
        self._ranks = distributed.get_world_size(group)
        try:
            self._group: Any = _connected(group, timedelta(seconds=timeout_s))
        except RuntimeError as error:
            raise RuntimeError(
                f"the ranks did not all make their loader within timeout_s={timeout_s}: one has "
                f"ended, or makes none (a loader for one rank alone takes rank and ranks): {error}"
            ) from error
        self._timeout_s = timeout_s
        self._made_with = {"flowtrain": __version__, "numpy": numpy.__version__, **made_with}

    def check(self, place: Place, step: FormedStep | None, content: int = 0) -> None:
        """Wait for the other ranks, and compare what comes next.

        Args:
            place: The place before it.
            step: The step, of all ranks; None where the epoch ends.
            content: Checksum of what was read for it.

        Raises:
            PackingError: A rank has other steps; raised on every rank, with what differs. Or this
                was closed.
            RuntimeError: A rank has ended, or did not come in time.
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
                f"their plans within timeout_s={self._timeout_s}: one has ended, or does not "
                f"iterate while this one does (a loader for one rank alone takes rank and ranks): "
                f"{error}"
            ) from error
        every = [json.loads(bytes(other.tolist())) for other in texts]
        first = every[0]
        rank, name = _difference(every)
        raise PackingError(
            f"step {first['step']} of epoch {first['epoch']}: rank {rank} has {name}="
            f"{every[rank].get(name)}, and rank 0 has {first.get(name)}: they would load samples "
            "of different steps; make every rank's loader alike, over the whole data set (a "
            "stream that is split or sharded by rank, or draws with a rank's own seed, is another "
            "one on each)"
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
    """A gloo group of the same ranks that torch does not keep: it ends with its last reference.

    Groups of `new_group` with local synchronization are named by how many there are, so that one
    made after another was destroyed would read the addresses of the destroyed one.
    """
    store = distributed.distributed_c10d._get_default_store()
    rank = distributed.get_rank(group)
    ranks = distributed.get_process_group_ranks(group)
    name = f"flowtrain/{hashlib.blake2b(json.dumps(ranks).encode(), digest_size=8).hexdigest()}"
    # The same number on all ranks, as each makes its loaders in the same order.
    number = store.add(f"{name}/made/{rank}", 1)
    prefixed = distributed.PrefixStore(f"{name}/{number}", store)
    return distributed.ProcessGroupGloo(prefixed, rank, len(ranks), timeout)


def _difference(every: list[dict[str, Any]]) -> tuple[int, str]:
    """The first rank that differs from rank 0, and in what; ranks may name different things."""
    names = dict.fromkeys(name for rank in every for name in rank)
    return next(
        (rank, name)
        for name in names
        for rank, other in enumerate(every)
        if other.get(name) != every[0].get(name)
    )
