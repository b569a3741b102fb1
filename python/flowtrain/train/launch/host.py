"""The launcher as the host of its run, which passes requests to stop on to the ranks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flowtrain import progress
from flowtrain.config.schema import RunConfig
from flowtrain.events import next_attempt
from flowtrain.train.control.attendance import Attendance
from flowtrain.train.control.host import JobHost
from flowtrain.train.control.job import STOP
from flowtrain.train.launch.errors import RunFailed
from flowtrain.train.launch.signals import StopRequest, end, say
from flowtrain.train.launch.tail import Tail
from flowtrain.train.state.logs import METRICS, TIMING

# Encoder ranks that have joined look for the end of the run several times in this time.
_LEAVE_S = 3.0
_POLL_S = 0.05


# The gateway tells the other hosts how the run has ended.
_GATEWAY_S = 10.0


@dataclass(frozen=True, slots=True)
class Listening:
    """How other hosts take part in a run.

    Attributes:
        command: Returns the arguments of `flowtrain` that start the gateway to them, given the
            folder of the run.
        interface: Address of this host that ranks on other hosts reach.
        name: Name of this host for them.
    """

    command: Callable[[Path], Sequence[str]]
    interface: str
    name: str


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
            cells=_cells(config),
            port=flow.port,
            timeout_s=flow.start_timeout_s,
            elastic=config.elastic,
        )
        self.attendance: Attendance | None = None
        if config.elastic:
            self.attendance = Attendance(
                self.store,
                self.pool,
                first=first,
                timeout_s=flow.timeout_s,
                start_timeout_s=flow.start_timeout_s,
                say=say,
            )
        self._stop = stop or StopRequest()
        self._told = False
        self._steps = config.train.steps
        self._metrics, self._timing = (
            Tail(config.run / name, from_end=True) for name in (METRICS, TIMING)
        )
        self._tokens = self._seconds = 0.0
        self._began = False
        self._elastic = config.elastic
        self.name = ""  # Of this host for others.
        self._gateway: subprocess.Popen[bytes] | None = None

    @property
    def has_peers(self) -> bool:
        """Whether other hosts can take part."""
        return self._gateway is not None

    def listen(self, how: Listening, folder: Path) -> None:
        """Start the gateway to other hosts; it ends with this object, or with this process.

        Args:
            how: How they take part.
            folder: Folder of the run.
        """
        self.name = how.name
        command = [sys.executable, "-m", "flowtrain", *how.command(folder)]
        # Ctrl-C at the terminal is for this process: the gateway lasts until the run is saved.
        self._gateway = subprocess.Popen(command, start_new_session=True)

    def poll(self) -> None:
        """Show how far the run is, and tell the planner if it is to end early.

        Called often while the ranks run.

        Raises:
            KeyboardInterrupt, SystemExit: The run is to end, and its first step has not begun.
            RunFailed: The gateway to other hosts has ended, and with it ranks that last.
        """
        self._show()
        self._check_gateway()
        if self.attendance is not None:
            self.attendance.poll()
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
        say(
            f"{name}: the run ends after the steps that are planned already, and is saved; a "
            "second signal ends it at once"
        )

    @property
    def given_up(self) -> str | None:
        """Why the ranks were told to save the run and to end; None if they were not."""
        return None if self.attendance is None else self.attendance.given_up

    def close(self) -> None:
        """Remove the pool, once encoder ranks that have joined have had time to leave."""
        end = time.monotonic() + _LEAVE_S
        while self.attendance is not None and self.attendance.num_left():
            if time.monotonic() > end or self.given_up:
                break
            time.sleep(_POLL_S)
        super().close()

    def close_gateway(self) -> None:
        """Let the gateway tell the other hosts how the run has ended, which is recorded now."""
        if self._gateway is not None:
            with suppress(subprocess.TimeoutExpired):
                self._gateway.wait(_GATEWAY_S)
            self._gateway.kill()
            self._gateway.wait()

    def _check_gateway(self) -> None:
        if self._gateway is None or (code := self._gateway.poll()) is None:
            return
        what = f"the gateway to other hosts (pid {self._gateway.pid}) ended with code {code}"
        if self._stop.made:
            return  # It has got the signal too. If ranks are lost with it, `wait_dead` tells.
        if not self._elastic:
            raise RunFailed(f"the run ended early; {what}")
        say(f"{what}; the run goes on without them")
        self._gateway = None

    def _show(self) -> None:
        """Show which ranks are ready, and then the steps that they have logged."""
        if not progress.is_shown():
            return
        if not self._began:
            ready, ranks = self.num_ready(), len(self._labels)
            self._began = ready == ranks
            loading = f"{ranks} ranks load the model; {ready} are ready"
            progress.show("the first step" if self._began else loading)
        for line in self._timing.lines():
            values = json.loads(line)
            self._tokens += values["tokens"]
            self._seconds += values["seconds"]
        # A step is in the metrics before its time is logged.
        for line in self._metrics.lines()[-1:]:
            step = json.loads(line)
            loss = "not finite" if step["loss"] is None else f"{step['loss']:.4f}"
            rate = f"  {self._tokens / self._seconds:,.0f} tokens/s" if self._seconds else ""
            done = step["step"] + 1
            text = f"step {done}/{self._steps}  loss {loss}{rate}"
            if done < self._steps:
                progress.show(text, done, self._steps)
            else:
                progress.show(f"{text}, and the ranks end")


def _cells(config: RunConfig) -> int:
    """Slabs for which the pool has cells."""
    if config.elastic:
        # Ranks that join need their own, and those of ranks that are gone are in use until their
        # records are read.
        return 4 * config.pool.max_cells
    # A replaced segment keeps its cells until all its records are read: records of the step before
    # or, in `bounded`, of each step in flight and of an evaluation.
    return (2 + config.flow.staleness + config.eval.has_data) * config.pool.max_cells
