"""Signals of the launcher: they end a run as an error does, so that nothing of it is left."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from torch.distributed.elastic.multiprocessing.api import SignalException

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@contextmanager
def ending_by_signals() -> Iterator[None]:
    """Raise SystemExit at a signal that would otherwise end this process at once.

    A signal that is ignored, as SIGHUP is below nohup, or that the caller handles, is left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread may set handlers.
        return
    ours = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Put this process's handlers back after the block, in which torch sets its own."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, *_ENDING)}
    try:
        yield
    except SignalException as error:
        # A signal in the block met torch's handler; it means what it means outside.
        if error.sigval == signal.SIGINT:
            raise KeyboardInterrupt from error
        if kept[error.sigval] is not signal.SIG_IGN:
            _end(error.sigval, None)
        raise
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in kept.items():
                signal.signal(number, handler)


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
