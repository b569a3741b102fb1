"""Standard output that its reader may close before everything is written."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def show(text: str, *, otherwise: str) -> None:
    """Print on standard output; where nobody can read it any more, the caller goes on.

    Args:
        text: Printed and flushed.
        otherwise: Said on standard error where it could not be.
    """
    try:
        print(text, end="", flush=True)
    except OSError as error:
        print(f"standard output: {error.strerror}; {otherwise}", file=sys.stderr, flush=True)
        _discard()


@contextmanager
def while_read() -> Iterator[None]:
    """Print within the block, which ends without an error where the reader has gone.

    All that was printed is written when the block has ended.
    """
    try:
        yield
        # There is no standard output where the shell has closed it (`>&-`).
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # The pipe may be another one: that of a process, or a connection.
        if sys.stdout is None or not _reader_has_gone():
            raise
        _discard()


def _reader_has_gone() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))


def _discard() -> None:
    """Write to nobody from here on: what is still buffered would fail when the process ends."""
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())
