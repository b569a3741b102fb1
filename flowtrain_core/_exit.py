"""Closes the pools of this process at its end."""

from __future__ import annotations

import atexit
import os
import sys

from flowtrain_core._C import _close_pools  # type: ignore[attr-defined]

atexit.register(_close_pools)
_registered_by = 0


def close_at_exit() -> None:
    """Called for every pool handle: a child of multiprocessing runs no `atexit` functions."""
    global _registered_by
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None or _registered_by == os.getpid():
        return
    from multiprocessing.util import Finalize

    _registered_by = os.getpid()
    # A negative priority: after the end of this process's own children, as other exit functions.
    Finalize(None, _close_pools, exitpriority=-1)
