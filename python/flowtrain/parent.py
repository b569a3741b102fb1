"""Processes that the kernel kills when their parent ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    Args:
        parent: Process that started this one. If it has already ended, this process exits.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(f"process {parent}, which started this one, has ended")


def outlive() -> None:
    """Undo `end_with`."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)
