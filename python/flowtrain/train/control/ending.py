"""The end of a rank after another rank has ended or no longer answers."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from contextlib import suppress
from typing import NoReturn, Protocol

from flowtrain_core import FlowTrainError, leave_pools

_GRACE_S = 0.5


class JobFailed(FlowTrainError, RuntimeError):
    """Another rank of the job has ended or no longer answers; the message names it and why."""


DIED = "died"
DIED_OR_LOST = "died, or its host or the link to it is lost"
"""How a rank of another host ended."""


def end_of(rank: str, pid: int, reason: str | None, *, is_elsewhere: bool = False) -> str:
    """Why a rank ends if another has ended.

    Args:
        rank: The other rank.
        pid: Its process.
        reason: The reason that it left; None if it left none.
        is_elsewhere: Whether it may be on another host.
    """
    died = DIED_OR_LOST if is_elsewhere else DIED
    return f"rank {rank} (pid {pid}) " + (died if reason is None else f"failed: {reason}")


class Ending(Protocol):
    """Called once, by a thread that watches the other ranks."""

    def __call__(self, reason: str, *, is_stuck: bool) -> None:
        """End the rank.

        Args:
            reason: Why.
            is_stuck: Whether ranks live and do not answer, rather than one has ended.
        """


def exit_at_once() -> NoReturn:
    """End the process of a rank with code 1, whatever its threads wait for."""
    leave_pools()
    os._exit(1)


class EndOfProcess:
    """Ends the process of a rank, which may be in a collective that no exception interrupts.

    Args:
        label: Name of the rank.
    """

    def __init__(self, label: str) -> None:
        self._label = label

    def __call__(self, reason: str, *, is_stuck: bool) -> None:
        if is_stuck:
            faulthandler.dump_traceback(all_threads=True)
        # The main thread may be about to report the same failure, in more detail.
        time.sleep(_GRACE_S)
        with suppress(OSError):  # The disk of the log may be full.
            print(f"flowtrain: {self._label} ends: {reason}", file=sys.stderr, flush=True)
        exit_at_once()
