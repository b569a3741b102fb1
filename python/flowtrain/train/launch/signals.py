"""Signals to the launcher: they end a run as an error does, so that its ranks end as well."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from torch.distributed.elastic.multiprocessing.api import SignalException

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class StopRequest:
    """Whether the run is to end after the steps that are planned already, and to be saved.

    Attributes:
        allowed: Whether SIGTERM makes a request; otherwise it ends the process.
        made: Whether there is a request.
    """

    def __init__(self) -> None:
        self.allowed = False
        self.made = False

    def signal(self, number: int, frame: FrameType | None) -> None:
        """Handler: the first SIGTERM is a request, and any other signal ends the process."""
        if number != signal.SIGTERM or not self.allowed or self.made:
            _end(number, frame)
        self.made = True


@contextmanager
def exit_on_signals() -> Iterator[StopRequest]:
    """Within the block, raise SystemExit at signals whose default is to end the process.

    Signals that are ignored, as SIGHUP is under nohup, or that the caller handles are not changed.

    Yields:
        The request to stop, which SIGTERM makes where it is allowed.
    """
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # Only the main thread may set handlers.
        return
    ours = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, stop.signal)
    try:
        yield stop
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
