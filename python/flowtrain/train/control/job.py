"""A job: one attempt of a run, whose ranks share a store and a pool."""

from __future__ import annotations

from dataclasses import dataclass

POOL_PREFIX = "flowtrain-"
HOST_LABEL = "host"
"""Name in the pool of the process that hosts the job."""
GATEWAY_LABEL = "gateway"
"""Name in the pool of the process that joins it with the pools of other hosts."""
STOP = "stop"
"""Key that is set when the run is to end after the steps that are planned already: the number of
the signal that asked for it."""
ENDED = "ended"
"""Key that a rank sets which ends early, and whose process lives on: its name, process and
reason."""
READY = "ready"
"""Event that every rank reaches before the first step; `READY/RANK` is set."""
FIRST_STEP = "first_step"
"""Key of the step to which the launcher has cut the logs."""
ATTEMPT = "attempt"
"""Key of the number of this start of the run, from 0."""
ON_HOST = "on_host"
"""Where ranks are on several hosts, `ON_HOST/RANK` is the name of that of a rank."""
LAUNCHER_PID = "FLOWTRAIN_LAUNCHER"
"""Environment variable of a rank that the launcher started: the launcher's process."""


@dataclass(frozen=True, slots=True)
class Job:
    """Where a rank finds its job.

    Attributes:
        address: `host:port` of the store.
        nonce: Random name of this attempt.
    """

    address: str
    nonce: str

    @property
    def pool(self) -> str:
        """Name of the pool."""
        return f"{POOL_PREFIX}{self.nonce}"
