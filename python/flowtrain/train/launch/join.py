"""Encoder ranks that join a run, as processes that a command starts."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import flowtrain_core
from flowtrain.config.checks import ConfigError
from flowtrain.config.schema import RunConfig
from flowtrain.signals import STOPS, exit_now
from flowtrain.train.control.job import Job
from flowtrain.train.control.seats import Seats
from flowtrain.train.control.store import JobStore
from flowtrain.train.launch.encoders import EncoderProcesses
from flowtrain.train.launch.errors import RunFailed
from flowtrain.train.launch.signals import say
from flowtrain.train.state.job_file import JobFile

_POLL_S = 0.1


def join_run(folder: Path, found: JobFile, config: RunConfig, *, ranks: int) -> None:
    """Start encoder ranks of a run that goes on, and wait until they have ended.

    They end with this process, also if it is killed. The first signal to it lets them leave: they
    publish what they encode, and return what else they have claimed.

    Args:
        folder: Folder of the run.
        found: Where its job is.
        config: The run.
        ranks: Number of encoder ranks to add.

    Raises:
        ConfigError: Encoder ranks cannot join the run.
        RunFailed: A rank failed or died; the run goes on without it.
    """
    if not config.elastic:
        raise ConfigError(
            f"--job {folder}: encoder ranks of this run can neither join nor leave (flow.mode="
            f"{config.flow.mode}, layout {config.flow.chosen}, flow.elastic="
            f"{str(config.flow.elastic).lower()}); they can in a decoupled run with flow.mode="
            "frozen, a replicated encoder and flow.elastic=true"
        )
    if found.version != flowtrain_core.__version__:
        raise ConfigError(
            f"--job {folder}: the run is of FlowTrain {found.version}, and this is "
            f"{flowtrain_core.__version__}; start the command with that of the run"
        )
    _join(folder, found.job, config, ranks=ranks)


def _join(folder: Path, job: Job, config: RunConfig, *, ranks: int) -> None:
    store = JobStore(job.address, job.nonce, timeout_s=config.flow.start_timeout_s)
    seats = Seats(store)
    reserved = [seats.reserve() for _ in range(ranks)]
    encoders = EncoderProcesses(config, job, store, resume=False, joins=True, again=lambda _: False)
    failures = []
    try:
        with _leaving_on_signals() as signals:
            for seat in reserved:
                encoders.start(seat.rank)
            say(f"{', '.join(seat.label for seat in reserved)}: joining the run in {folder}")
            told = False
            while encoders.running:
                time.sleep(_POLL_S)
                if signals and not told:
                    told = True
                    name = signal.Signals(signals[0]).name
                    say(f"{name}: leaving after what is being encoded; again ends it at once")
                    encoders.leave()
                failures += encoders.poll()
    finally:
        encoders.end()
    if failures:
        ended = "; ".join(f"rank {each.rank}: {each.reason()}" for each in failures)
        raise RunFailed(
            f"--job {folder}: {ended}; the log of {failures[0].label} is {failures[0].log}"
        )
    say(f"{'left' if told else 'end of'} the run in {folder}")


@contextmanager
def _leaving_on_signals() -> Iterator[list[int]]:
    """Within the block, the first signal to stop is only noted, and the second ends the process.

    Yields:
        Numbers of the signals so far.
    """
    signals: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        if len(signals) > 1:
            exit_now(number, frame)

    if threading.current_thread() is not threading.main_thread():
        yield signals  # Only the main thread may set handlers.
        return
    before = {number: signal.signal(number, note) for number in STOPS}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
