"""The `worker_init_fn` of workers that read a data set within the loader's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch.utils.data import get_worker_info

Init = Callable[[int], None]


def init_within(init: Init | None) -> Init:
    """A worker_init_fn for a data set that has another as its `dataset`.

    Such a function shards, or opens, `get_worker_info().dataset` (torch's documentation of
    `IterableDataset`): that must be the data set that was given to the loader.

    Args:
        init: That of the loader's caller, or None.
    """
    return partial(_begin, init)


def _begin(init: Init | None, worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    # WorkerInfo is read-only.
    object.__setattr__(info, "dataset", info.dataset.dataset)  # type: ignore[attr-defined]
    if init is not None:
        init(worker)
