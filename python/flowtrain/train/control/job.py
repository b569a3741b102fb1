"""A job: what both worlds share, made by one process and found by the others."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import DistNetworkError, TCPStore

from flowtrain.clean import remove_left_pools
from flowtrain.config.schema import ConfigError, RunConfig
from flowtrain.train.control.store import Board
from flowtrain_core import Pool

HOST_LABEL = "host"
# Key of the board: the step that the launcher cut the logs to.
FIRST = "first"
# Environment variable of a rank that the launcher started: the launcher's process.
LAUNCHER = "FLOWTRAIN_LAUNCHER"
_PREFIX = "flowtrain-"


@dataclass(frozen=True, slots=True)
class Job:
    """Where a rank finds the job.

    Attributes:
        store: `host:port` of the store.
        nonce: Random name of this attempt; also the name of its pool.
    """

    store: str
    nonce: str

    @property
    def pool(self) -> str:
        return f"{_PREFIX}{self.nonce}"


class JobHost:
    """Store and pool of one attempt, for as long as this object lives.

    Args:
        config: The run.
        first: Step that the ranks go on from; each compares it with its checkpoint.

    Raises:
        ConfigError: `flow.port` is in use.
    """

    def __init__(self, config: RunConfig, *, first: int) -> None:
        flow = config.flow
        try:
            self._store = TCPStore(
                "127.0.0.1",
                flow.port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=flow.deadline_s),
            )
        except DistNetworkError as error:
            raise ConfigError(
                f"flow.port={flow.port}: the job's store cannot listen there ({_reason(flow.port)}"
                "); choose another port, or 0 to let the system choose"
            ) from error
        # What jobs left of which every process was killed, nobody else can remove.
        remove_left_pools(_PREFIX)
        self.job = Job(store=f"127.0.0.1:{self._store.port}", nonce=secrets.token_hex(8))
        board = Board(self.job.store, self.job.nonce, timeout_s=flow.start_deadline_s)
        board.put(FIRST, first)
        encoders, backbones = flow.encoders, flow.backbones
        # A rank holds its own lane, one for its inbox, and one for each inbox it sends to.
        lanes = 1 + 2 * (encoders + backbones) + 2 * encoders * backbones
        self.pool = Pool.create(
            self.job.pool,
            rings=(
                *(f"encoder.{r}" for r in range(encoders)),
                *(f"backbone.{r}" for r in range(backbones)),
            ),
            max_lanes=max(64, 2 * lanes),
            # A segment that was replaced keeps its cells until every record in it is read. It may
            # be of the step before or, in `bounded`, of each step in flight.
            max_cells=(2 + flow.staleness) * config.pool.max_cells,
            label=HOST_LABEL,
        )

    def close(self) -> None:
        """Remove the pool; the store goes with this object."""
        self.pool.close()


def _reason(port: int) -> str:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error.strerror or str(error)
    return "another process took and left it"
