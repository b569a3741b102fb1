"""Local launch: the ranks as processes of this host, by torch's launcher API."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from flowtrain import progress
from flowtrain.config.layout import WorldLayout
from flowtrain.config.schema import RunConfig
from flowtrain.train.control.job import Job
from flowtrain.train.control.store import JobStore
from flowtrain.train.launch.encoders import EncoderProcesses
from flowtrain.train.launch.errors import RunFailed
from flowtrain.train.launch.host import RunHost
from flowtrain.train.launch.processes import Failure, end_processes, failure_of, start_world
from flowtrain.train.launch.tail import Tail

# After the first failure, the other ranks have this long to end and report it.
_GRACE_S = 10.0
_POLL_S = 0.1
# Encoder ranks that come and go end soon after the others.
_LAST_S = 5.0


def run_local_ranks(config: RunConfig, host: RunHost, *, resume: bool) -> None:
    """Start every rank, and wait until all have ended.

    Args:
        config: The run, whose folder holds its configuration.
        host: The job's host.
        resume: Resume from the latest checkpoint.

    Raises:
        RunFailed: A rank failed or died; all others have ended.
    """
    worlds = [(world, range(world.size)) for world in config.flow.chosen.worlds]
    encoders = None
    if host.attendance is not None:
        again = host.attendance.ended
        encoders = EncoderProcesses(config, host.job, host.store, resume=resume, again=again)
        worlds = [(world, ranks) for world, ranks in worlds if "backbone" in world.modules]
    failures = run_ranks(
        config, host.job, worlds, host.store, host.poll, resume=resume, encoders=encoders
    )
    if failures:
        raise run_failed(failures)


def run_ranks(
    config: RunConfig,
    job: Job,
    worlds: Iterable[tuple[WorldLayout, Sequence[int]]],
    store: JobStore,
    poll: Callable[[], None] | None = None,
    *,
    resume: bool,
    encoders: EncoderProcesses | None = None,
) -> list[Failure]:
    """Start ranks, and wait until all have ended; they end with the block of the caller, too.

    Args:
        config: The run, whose folder holds its configuration.
        job: Where the job is.
        worlds: Worlds of the run, with the ranks of each that are started.
        store: The job's store.
        poll: Called often during the wait.
        resume: Resume from the latest checkpoint.
        encoders: Starts encoder ranks that come and go; as many as the layout has are started.

    Returns:
        The failures, in the order in which they happened.
    """
    logs = config.run / "logs" / job.nonce
    started: dict[str, SubprocessContext] = {}
    try:
        for world, ranks in worlds:
            folder = logs / world.name
            started[world.name] = start_world(
                config, job, world, ranks, folder=folder, resume=resume
            )
        if encoders is not None:
            for rank in range(config.flow.chosen.encoder_ranks):
                encoders.start(rank)
        printed = _printed(started.values()) if progress.holds_stdout() else None

        def poll_and_print() -> None:
            if poll is not None:
                poll()
            _print_new(printed)

        failures = _wait(started, store, poll_and_print, encoders)
        _print_new(printed)
        if encoders is not None and not failures:
            encoders.wait(_LAST_S)
        return failures
    finally:
        end_processes(started.values())
        if encoders is not None:
            encoders.end()


def run_failed(failures: Sequence[Failure]) -> RunFailed:
    """The error of a run, which names the failure first that is the consequence of no other."""
    failures = sorted(failures, key=Failure.is_consequence)
    return RunFailed(
        f"the run ended early; {_describe(failures)}; the log of {failures[0].label} is "
        f"{failures[0].log}"
    )


def _printed(worlds: Iterable[SubprocessContext]) -> Tail:
    """What the first rank with the backbone, of the first world, prints."""
    return Tail(Path(next(iter(worlds)).stdouts[0]))


def _print_new(printed: Tail | None) -> None:
    for line in printed.lines() if printed is not None else ():
        print(line)


def _wait(
    worlds: dict[str, SubprocessContext],
    store: JobStore,
    poll: Callable[[], None],
    encoders: EncoderProcesses | None,
) -> list[Failure]:
    """Wait until every rank has ended; return the failures in the order in which they happened.

    Args:
        worlds: The ranks.
        store: The job's store.
        poll: Called often during the wait.
        encoders: Ranks for whose end nobody waits.
    """
    running = {
        (world, rank): handler.proc
        for world, processes in worlds.items()
        for rank, handler in processes.subprocess_handlers.items()
    }
    failures: list[Failure] = []
    limit: float | None = None
    while running and (limit is None or time.monotonic() < limit):
        time.sleep(_POLL_S)
        poll()
        for (world, rank), process in list(running.items()):
            code = process.poll()
            if code is None:
                continue
            del running[world, rank]
            if code != 0:
                label = f"{world}.{worlds[world].envs[rank]['RANK']}"
                log = Path(worlds[world].stderrs[rank])
                failures.append(failure_of(label, process.pid, code, log, store=store))
        if encoders is not None:
            failures += encoders.poll()
        if failures:
            limit = limit or time.monotonic() + _GRACE_S
    return failures


def _describe(failures: Sequence[Failure]) -> str:
    """Which ranks failed and why, with ranks of the same reason together."""
    ranks: dict[str, list[str]] = {}
    for failure in failures:
        ranks.setdefault(failure.reason(), []).append(failure.rank)
    return "; ".join(
        f"rank{'s' if len(names) > 1 else ''} {', '.join(names)}: {reason}"
        for reason, names in ranks.items()
    )
