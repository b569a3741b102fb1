"""The host of a job: the process that owns its store and its pool."""

from __future__ import annotations

import secrets
import signal
import socket
from datetime import timedelta

from torch.distributed import TCPStore

from flowtrain.clean import remove_left_pools
from flowtrain.config.checks import ConfigError
from flowtrain.config.schema import RunConfig
from flowtrain.events import next_attempt
from flowtrain.train.control.job import (
    ATTEMPT,
    FIRST_STEP,
    HOST_LABEL,
    POOL_PREFIX,
    READY,
    STOP,
    Job,
)
from flowtrain.train.control.store import JobStore
from flowtrain.train.launch.signals import StopRequest, end, end_row, say
from flowtrain_core import Pool

_LOOPBACK = "127.0.0.1"
# Ranks that connect at the same time.
_BACKLOG = 4096


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
        self._labels = config.flow.chosen.labels
        flow = config.flow
        listener = _listener(flow.port)
        port = listener.getsockname()[1]
        self._server = TCPStore(
            _LOOPBACK,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=flow.timeout_s),
            # Given an address alone, the server of torch listens on every interface.
            master_listen_fd=listener.detach(),
        )
        # A job whose processes were all killed had nobody left to remove its pool.
        remove_left_pools(POOL_PREFIX)
        self.job = Job(f"{_LOOPBACK}:{port}", secrets.token_hex(8))
        self.store = JobStore(self.job.address, self.job.nonce, timeout_s=flow.start_timeout_s)
        self.store.put(FIRST_STEP, first)
        self.store.put(ATTEMPT, next_attempt(config.run))
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
        """Tell the planner if the run is to end early; called often while the ranks run.

        Raises:
            KeyboardInterrupt, SystemExit: The run is to end, and its first step has not begun.
        """
        if self._told:
            return
        if not self._stop.made and self.store.has(STOP):
            # A rank got the signal, from the launcher that the user started it with.
            self._stop.made = self.store.get(STOP, writer="a rank")
        if not self._stop.made:
            return
        self._told = True
        name = signal.Signals(self._stop.made).name
        if not self.has_begun():
            end(
                self._stop.made,
                f"{name}: the run ends before its first step, so that there is nothing to save",
            )
        self.store.put(STOP, self._stop.made)
        end_row()
        say(
            f"{name}: the run ends after the steps that are planned already, and is saved; a "
            "second signal ends it at once"
        )

    def has_begun(self) -> bool:
        """Whether all ranks have begun the first step."""
        return all(self.store.has(f"{READY}/{label}") for label in self._labels)

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
