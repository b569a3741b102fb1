"""The host of a job: the process that owns its store and its pool."""

from __future__ import annotations

import secrets
import socket
import sys
from datetime import timedelta

from torch.distributed import DistNetworkError, TCPStore

from flowtrain.clean import remove_left_pools
from flowtrain.config.checks import ConfigError
from flowtrain.config.schema import RunConfig
from flowtrain.train.control.job import FIRST_STEP, HOST_LABEL, POOL_PREFIX, STOP, Job
from flowtrain.train.control.store import JobStore
from flowtrain.train.launch.signals import StopRequest
from flowtrain_core import Pool


class JobHost:
    """Creates the store and the pool of an attempt; they last as long as this object.

    Args:
        config: The run.
        first: Step to start at; each rank compares it with its checkpoint.
        stop: Whether the run is to end early.

    Raises:
        ConfigError: `flow.port` is in use.
    """

    def __init__(self, config: RunConfig, *, first: int, stop: StopRequest | None = None) -> None:
        self._stop = stop or StopRequest()
        self._told = False
        flow = config.flow
        try:
            self._server = TCPStore(
                "127.0.0.1",
                flow.port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=flow.timeout_s),
            )
        except DistNetworkError as error:
            raise ConfigError(
                f"flow.port={flow.port}: the job's store cannot listen there ({_reason(flow.port)}"
                "); choose another port, or 0 to let the system choose"
            ) from error
        # A job whose processes were all killed had nobody left to remove its pool.
        remove_left_pools(POOL_PREFIX)
        self.job = Job(f"127.0.0.1:{self._server.port}", secrets.token_hex(8))
        self.store = JobStore(self.job.address, self.job.nonce, timeout_s=flow.start_timeout_s)
        self.store.put(FIRST_STEP, first)
        encoder_ranks, backbone_ranks = flow.chosen.encoder_ranks, flow.chosen.backbone_ranks
        # Each module of a rank has a lane for its inbox, and one for each inbox it sends to; each
        # rank has another lane, and so has this process.
        lanes = 1 + 2 * (encoder_ranks + backbone_ranks) + 2 * encoder_ranks * backbone_ranks
        self.pool = Pool.create(
            self.job.pool,
            rings=(
                *(f"encoder.{r}" for r in range(encoder_ranks)),
                *(f"backbone.{r}" for r in range(backbone_ranks)),
            ),
            max_lanes=max(64, 2 * lanes),
            # A replaced segment keeps its cells until all its records are read: records of the
            # step before or, in `bounded`, of each step in flight and of an evaluation.
            max_cells=(2 + flow.staleness + config.eval.has_data) * config.pool.max_cells,
            label=HOST_LABEL,
        )

    def poll(self) -> None:
        """Tell the planner if the run is to end early; called often while the ranks run."""
        if self._stop.made and not self._told:
            self._told = True
            self.store.put(STOP, True)
            print(
                "flowtrain: SIGTERM: the run ends after the steps that are planned already, and is "
                "saved; a second SIGTERM ends it at once",
                file=sys.stderr,
            )

    def close(self) -> None:
        """Remove the pool; the store ends with this object."""
        self.pool.close()


def _reason(port: int) -> str:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error.strerror or str(error)
    return "another process took and left it"
