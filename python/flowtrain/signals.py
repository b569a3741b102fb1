"""Signals that may reach every process of a run at once, of which only its launcher makes use.

systemd, Slurm and preemption send SIGTERM to all processes of a job, and a terminal sends SIGINT to
all of its foreground. If ranks or readers ended with it, there would be nothing left to save.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a run to end."""


@contextmanager
def withheld() -> Iterator[None]:
    """Withhold these signals from processes that the block starts, until `leave_to_parent`.

    A process inherits the mask of the thread that starts it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_to_parent() -> None:
    """Ignore these signals in this process; its parent decides when it ends.

    Commands that this process starts, and processes that it forks without `withheld`, keep the
    defaults: a data set may start and terminate its own.
    """
    process = os.getpid()

    def ignore(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in STOPS:
        # Not SIG_IGN, which exec would keep.
        signal.signal(number, ignore)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
