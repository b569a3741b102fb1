"""Signals to the launcher: the first ends a run and saves it, the second ends it at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from flowtrain.signals import STOPS, exit_now, ignore_further

# Names of signals whose handlers torch sets when it starts processes.
_TORCH_HANDLES = "TORCHELASTIC_SIGNALS_TO_HANDLE"
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler, exit_now)


class StopRequest:
    """Whether the run is to end after the steps that are planned already, and to be saved.

    Attributes:
        allowed: Whether a signal makes a request; otherwise it ends the process.
        made: Number of the signal that made the request; 0 if there is none.
    """

    def __init__(self) -> None:
        self.allowed = False
        self.made = 0

    def signal(self, number: int, frame: FrameType | None) -> None:
        """Handler: the first signal of `STOPS` is a request, and any other ends the process."""
        if number not in STOPS or not self.allowed or self.made:
            _end_at_once(number, frame)
        self.made = number


@contextmanager
def exit_on_signals() -> Iterator[StopRequest]:
    """Within the block, raise what `end` raises at signals whose default is to end the process.

    Signals that are ignored, as SIGHUP is under nohup, or that the caller handles are not changed.

    Yields:
        The request to stop, which signals make where it is allowed.
    """
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop  # Only the main thread may set handlers.
        return
    before = {number: signal.getsignal(number) for number in (*STOPS, signal.SIGQUIT)}
    ours = {number: handler for number, handler in before.items() if handler in _DEFAULTS}
    for number in ours:
        signal.signal(number, stop.signal)
    try:
        yield stop
    finally:
        for number, handler in ours.items():
            # If the process ends, `exits` has further signals ignored until its own block ends.
            if handler is not exit_now or signal.getsignal(number) == stop.signal:
                signal.signal(number, handler)


@contextmanager
def without_handlers_of_torch() -> Iterator[None]:
    """Within the block, torch leaves the signal handlers as they are when it starts processes.

    Its handlers raise an exception, also at a signal that is ignored. In the middle of a start
    nobody would know the processes that run already.
    """
    before = os.environ.get(_TORCH_HANDLES)
    # It must handle some signal; nobody sends this one.
    os.environ[_TORCH_HANDLES] = signal.Signals(signal.SIGRTMAX).name
    unused = signal.getsignal(signal.SIGRTMAX)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGRTMAX, unused)
        if before is None:
            del os.environ[_TORCH_HANDLES]
        else:
            os.environ[_TORCH_HANDLES] = before


def end(number: int, text: str) -> NoReturn:
    """End the process as this signal does by default, and let the caller's blocks end.

    Further signals are ignored meanwhile.

    Args:
        number: The signal.
        text: How the run ends, in a line.

    Raises:
        KeyboardInterrupt: It is SIGINT; the command prints the text of the exception.
        SystemExit: It is another; the text is on standard error.
    """
    ignore_further()
    if number == signal.SIGINT:
        raise KeyboardInterrupt(text)
    with suppress(OSError):  # Standard error may be gone with its terminal.
        # Not by `print`, which a handler may have interrupted; and over the bar, if there is one.
        row = "\r\x1b[K" if os.isatty(2) else ""
        os.write(2, f"{row}flowtrain: {text}\n".encode())
    raise SystemExit(128 + number)


def say(text: str) -> None:
    """Print a line on standard error, which may be gone with its terminal."""
    with suppress(OSError):
        print(f"flowtrain: {text}", file=sys.stderr, flush=True)


def _end_at_once(number: int, _frame: FrameType | None) -> NoReturn:
    end(
        number,
        f"{signal.Signals(number).name}: ends at once; --resume goes on from the last checkpoint, "
        "if there is one",
    )
