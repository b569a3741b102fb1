"""What a worker is told of the data set that it reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch.utils.data import get_worker_info

Init = Callable[[int], None]


def init_within(init: Init | None) -> Init:
    """A worker_init_fn for a data set that has another as its `dataset`.

    As torch's documentation has it, such a function shares out, or opens, the data set that
    `get_worker_info` tells: this must be the one that was given to the loader.

    Args:
        init: That of the loader's caller, or None.
    """
    return partial(_begin, init)


def _begin(init: Init | None, worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    # It refuses to be assigned to.
    object.__setattr__(info, "dataset", info.dataset.dataset)  # type: ignore[attr-defined]
    if init is not None:
        init(worker)
