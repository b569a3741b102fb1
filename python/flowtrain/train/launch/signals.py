"""Signals to the launcher: they end a run as an error does, so that its ranks end as well."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from torch.distributed.elastic.multiprocessing.api import SignalException

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Within the block, raise SystemExit at signals whose default is to end the process.

    Signals that are ignored, as SIGHUP is under nohup, or that the caller handles are not changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread may set handlers.
        return
    ours = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def restored_handlers() -> Iterator[None]:
    """Restore the signal handlers after the block, in which torch sets its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *_SIGNALS)}
    try:
        yield
    except SignalException as error:
        # A signal reached torch's handler; treat it as outside of the block.
        if error.sigval == signal.SIGINT:
            raise KeyboardInterrupt from error
        if before[error.sigval] is not signal.SIG_IGN:
            _end(error.sigval, None)
        raise
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
