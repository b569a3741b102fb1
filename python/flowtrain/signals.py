"""Signals that end a command, and that a run leaves to its launcher.

They may reach every process of a run at once: systemd, Slurm and preemption send SIGTERM to all
processes of a job, and a terminal sends SIGINT to all of its foreground. If ranks or readers ended
with it, there would be nothing left to save.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a run to end."""


def exit_now(number: int, _frame: FrameType | None) -> NoReturn:
    """Handler that ends the process by SystemExit, with 128 plus the number of the signal."""
    raise SystemExit(128 + number)


@contextmanager
def exits() -> Iterator[None]:
    """Within the block, SIGTERM and SIGHUP raise SystemExit where they would end the process.

    Python raises KeyboardInterrupt at SIGINT alone. At the others it would end without leaving its
    blocks, and so leave temporary folders and the processes that it has started.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread may set handlers.
        return
    ours = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in ours:
        signal.signal(number, exit_now)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


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
