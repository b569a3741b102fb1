"""Signals that end a command, and that a run leaves to its launcher.

They may reach every process of a run at once: systemd, Slurm and preemption send SIGTERM to all
processes of a job, and a terminal sends SIGINT to all of its foreground. If ranks or workers ended
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
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


def exit_now(number: int, _frame: FrameType | None) -> NoReturn:
    """Handler that ends the process by an exception, as its blocks have to be left.

    Raises:
        KeyboardInterrupt: The signal is SIGINT.
        SystemExit: It is another one; the code is 128 plus its number.
    """
    ignore_further()
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def ignore_further() -> None:
    """Ignore these signals: the process ends already, and another exception would interrupt that.

    The block of `exits` around it sets them back.
    """
    if threading.current_thread() is threading.main_thread():
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def exits() -> Iterator[None]:
    """Within the block, the first of these signals raises what `exit_now` raises.

    By default SIGTERM and SIGHUP would end the process without leaving its blocks, and so leave
    temporary folders and the processes that it has started; and each further SIGINT would raise
    another KeyboardInterrupt while these blocks clean up. Signals that are ignored, as SIGHUP is
    under nohup, or that the caller handles are not changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread may set handlers.
        return
    before = {number: signal.getsignal(number) for number in STOPS}
    ours = {number: handler for number, handler in before.items() if handler in _DEFAULTS}
    for number in ours:
        signal.signal(number, exit_now)
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)


def end_silently() -> None:
    """Have SIGINT end this process silently outside of `exits`.

    A KeyboardInterrupt in what runs when the interpreter ends would print a traceback.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


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
