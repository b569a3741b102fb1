"""The `worker_init_fn` of workers whose data set wraps that of the caller."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch.utils.data import get_worker_info

Init = Callable[[int], None]


def wrapped_init(init: Init | None) -> Init:
    """A worker_init_fn for a data set that wraps another one in its attribute `dataset`.

    A worker_init_fn shards or opens `get_worker_info().dataset` (torch's documentation of
    `IterableDataset`), which must therefore be the data set that the caller gave.

    Args:
        init: The worker_init_fn of the caller, or None.
    """
    return partial(_begin, init)


def _begin(init: Init | None, worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    # Not by assignment, as WorkerInfo is read-only.
    object.__setattr__(info, "dataset", info.dataset.dataset)  # type: ignore[attr-defined]
    if init is not None:
        init(worker)
