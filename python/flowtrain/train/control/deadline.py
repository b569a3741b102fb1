"""Timeouts counted in periods, so that a job that was stopped as a whole can continue.

However long a process is stopped, only one period passes for it.
"""

from __future__ import annotations

import math

UNLIMITED_S = 86_400.0
"""Timeout of a wait that the heartbeat ends; torch and the pool need a number."""

_PERIOD_S = 1.0
# Minimum number of periods in a timeout: short timeouts have short periods.
_MIN_PERIODS = 8


def period_of(timeout_s: float) -> float:
    """Length in seconds of the periods in which a timeout is counted."""
    return min(_PERIOD_S, timeout_s / _MIN_PERIODS)


def periods_in(timeout_s: float, period_s: float) -> int:
    """Number of periods after which a timeout has expired."""
    return math.ceil(timeout_s / period_s)
