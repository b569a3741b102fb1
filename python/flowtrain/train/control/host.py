"""The host of a job: the process that owns its store and its pool."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Collection
from datetime import timedelta

from torch.distributed import TCPStore

from flowtrain.clean import remove_left_pools
from flowtrain.config.checks import ConfigError
from flowtrain.config.layout import RankLayout
from flowtrain.train.control.job import (
    ATTEMPT,
    FIRST_STEP,
    HOST_LABEL,
    POOL_PREFIX,
    READY,
    Job,
)
from flowtrain.train.control.seats import Seats
from flowtrain.train.control.store import JobStore
from flowtrain_core import Pool

_LOOPBACK = "127.0.0.1"
# Ranks that connect at the same time.
_BACKLOG = 4096
_POLL_S = 0.05
# Further encoder ranks for which there are lanes, at least.
_GUESTS = 8


class JobHost:
    """Creates the store and the pool of a job; they last as long as this object.

    Args:
        layout: The ranks of the job.
        first: Step to start at; each rank compares it with its checkpoint.
        attempt: Number of this start of the run, from 0.
        cells: Maximum slabs over all segments of the pool.
        port: Port of the store; 0 lets the system choose.
        timeout_s: Timeout to connect to the store.
        elastic: Whether encoder ranks come and go.

    Raises:
        ConfigError: The port is in use.
    """

    def __init__(
        self,
        layout: RankLayout,
        *,
        first: int,
        attempt: int,
        cells: int,
        port: int,
        timeout_s: float,
        elastic: bool = False,
    ) -> None:
        self._labels = layout.labels_that_last(elastic=elastic)
        listener = _listener(port)
        port = listener.getsockname()[1]
        self._server = TCPStore(
            _LOOPBACK,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=timeout_s),
            # Given an address alone, the server of torch listens on every interface.
            master_listen_fd=listener.detach(),
        )
        # A job whose processes were all killed had nobody left to remove its pool.
        remove_left_pools(POOL_PREFIX)
        self.job = Job(f"{_LOOPBACK}:{port}", secrets.token_hex(8))
        self.store = JobStore(self.job.address, self.job.nonce, timeout_s=timeout_s)
        self.store.put(FIRST_STEP, first)
        self.store.put(ATTEMPT, attempt)
        encoder_ranks, backbone_ranks = layout.encoder_ranks, layout.backbone_ranks
        if elastic:
            Seats(self.store).make(encoder_ranks)
            encoder_ranks += _GUESTS
        # Each module of a rank has a lane for its inbox, and one for each inbox it sends to; each
        # rank has another lane, and so has this process.
        lanes = 1 + 2 * (encoder_ranks + backbone_ranks) + 2 * encoder_ranks * backbone_ranks
        self.pool = Pool.create(
            self.job.pool,
            rings=(
                *(f"encoder.{r}" for r in range(layout.encoder_ranks)),
                *(f"backbone.{r}" for r in range(backbone_ranks)),
            ),
            max_lanes=max(64, 2 * lanes),
            max_cells=cells,
            label=HOST_LABEL,
        )

    def has_begun(self) -> bool:
        """Whether all ranks have begun the first step."""
        return self.num_ready() == len(self._labels)

    def num_ready(self) -> int:
        """Ranks that are ready for the first step."""
        return sum(self.store.has(f"{READY}/{label}") for label in self._labels)

    def wait_left(self, labels: Collection[str], *, timeout_s: float) -> None:
        """Wait until these ranks have left or died; not longer than the timeout."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            lanes = [lane for lane in self.pool.lanes() if lane.role == "pool"]
            if not any(lane.label in labels and lane.state == "alive" for lane in lanes):
                return
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Remove the pool; the store ends with this object."""
        self.pool.close()


def _listener(port: int) -> socket.socket:
    """A socket that listens on the loopback interface alone.

    Raises:
        ConfigError: The port cannot be used.
    """
    try:
        return socket.create_server((_LOOPBACK, port), backlog=_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"flow.port={port}: the job's store cannot listen there ({error.strerror}); choose "
            "another port, or 0 to let the system choose"
        ) from error
