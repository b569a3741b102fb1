"""The launcher as the host of its run, which passes requests to stop on to the ranks."""

from __future__ import annotations

import signal

from flowtrain.config.schema import RunConfig
from flowtrain.events import next_attempt
from flowtrain.train.control.host import JobHost
from flowtrain.train.control.job import STOP
from flowtrain.train.launch.signals import StopRequest, end, end_row, say


class RunHost(JobHost):
    """Hosts an attempt of a run.

    Args:
        config: The run.
        first: Step to start at; each rank compares it with its checkpoint.
        stop: Whether the run is to end early.

    Raises:
        ConfigError: `flow.port` is in use.
    """

    def __init__(self, config: RunConfig, *, first: int, stop: StopRequest | None = None) -> None:
        flow = config.flow
        super().__init__(
            flow.chosen,
            first=first,
            attempt=next_attempt(config.run),
            # A replaced segment keeps its cells until all its records are read: records of the
            # step before or, in `bounded`, of each step in flight and of an evaluation.
            cells=(2 + flow.staleness + config.eval.has_data) * config.pool.max_cells,
            port=flow.port,
            timeout_s=flow.start_timeout_s,
        )
        self._stop = stop or StopRequest()
        self._told = False

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
