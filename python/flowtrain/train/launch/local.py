"""Local launch: the ranks as processes of this host, by torch's launcher API."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std, start_processes
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from flowtrain.config.layout import WorldLayout
from flowtrain.config.schema import RunConfig
from flowtrain.signals import withheld
from flowtrain.train.control.job import LAUNCHER_PID, Job
from flowtrain.train.control.store import JobStore
from flowtrain.train.control.watcher import names_another
from flowtrain.train.launch.errors import RunFailed
from flowtrain.train.launch.host import RunHost
from flowtrain.train.launch.signals import end_row, without_handlers_of_torch

# After the first failure, the other ranks have this long to end and report it.
_GRACE_S = 10.0
_POLL_S = 0.1
# Timeout for a killed process to end.
_END_S = 5
_HUGE_PAGES = "glibc.malloc.hugetlb"


@dataclass(frozen=True, slots=True)
class _Failure:
    label: str
    pid: int
    exit_code: int
    log: Path
    published: str | None
    """Reason that the rank left in the store."""

    @property
    def rank(self) -> str:
        return f"{self.label} (pid {self.pid})"

    def reason(self) -> str:
        """The reason that the rank gave, or else how its process ended."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        prefix = f"flowtrain: {self.label} ends: "
        # On a full disk, the last line may be incomplete or missing.
        complete = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
        logged = [
            line.removeprefix(prefix).rstrip() for line in complete if line.startswith(prefix)
        ]
        # The log takes precedence: the rank's watcher adds the cause to it, and not to the store.
        if logged:
            return logged[-1]
        if self.published is not None:
            return self.published
        if self.exit_code < 0:
            return f"killed by signal {-self.exit_code}"
        return f"exit code {self.exit_code}"

    def is_consequence(self) -> bool:
        """Whether the rank ended because of another."""
        return names_another(self.reason())


def run_local_ranks(config: RunConfig, host: RunHost, *, resume: bool) -> None:
    """Start every rank, and wait until all have ended.

    Args:
        config: The run, whose folder holds its configuration.
        host: The job's host.
        resume: Resume from the latest checkpoint.

    Raises:
        RunFailed: A rank failed or died; all others have ended.
    """
    job = host.job
    logs = config.run / "logs" / job.nonce
    worlds: dict[str, SubprocessContext] = {}
    try:
        try:
            for world in config.flow.chosen.worlds:
                worlds[world.name] = _start(config, job, world, logs=logs, resume=resume)
            failures = _wait(worlds, host.store, host.poll)
        finally:
            _end(worlds.values())
    except KeyboardInterrupt:
        end_row()  # What is printed next is the text of this exception.
        raise
    if failures:
        if host.has_begun():
            end_row()  # A rank that failed has left its line of progress open.
        failures.sort(key=_Failure.is_consequence)
        raise RunFailed(
            f"the run ended early; {_describe(failures)}; the log of {failures[0].label} is "
            f"{failures[0].log}"
        )


def _start(
    config: RunConfig, job: Job, world: WorldLayout, *, logs: Path, resume: bool
) -> SubprocessContext:
    arguments = (
        *("-m", "flowtrain.train.ranks.main", str(config.run / "config.yaml")),
        *("--world", world.name, "--store", job.address, "--nonce", job.nonce),
        *(("--resume",) if resume else ()),
    )
    folder = logs / world.name
    folder.mkdir(parents=True)
    # The first rank with the backbone shows the run's progress on this terminal.
    shows = "backbone" in world.modules
    ranks = range(world.size)
    redirects = {r: Std.ERR if shows and r == 0 else Std.ALL for r in ranks}
    with without_handlers_of_torch(), withheld():
        processes = start_processes(
            name=world.name,
            entrypoint=sys.executable,
            args=dict.fromkeys(ranks, arguments),
            envs={
                r: {
                    "RANK": str(r),
                    "LOCAL_RANK": str(r),
                    "WORLD_SIZE": str(world.size),
                    **memory_and_threads(),
                    "PYTHONUNBUFFERED": "1",
                    LAUNCHER_PID: str(os.getpid()),
                }
                for r in ranks
            },
            logs_specs=DefaultLogsSpecs(log_dir=str(folder), redirects=redirects),
        )
    assert isinstance(processes, SubprocessContext)
    return processes


def _end(worlds: Iterable[SubprocessContext]) -> None:
    """Kill the ranks that still run, each with its workers; they ignore other signals."""
    for world in worlds:
        for rank in world.subprocess_handlers.values():
            if rank.proc.poll() is None:
                with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                    os.killpg(rank.proc.pid, signal.SIGKILL)
                    rank.proc.wait(_END_S)
        world.close(death_sig=signal.SIGKILL, timeout=_END_S)


def memory_and_threads() -> dict[str, str]:
    """Environment on which the speed of a rank's process depends."""
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "GLIBC_TUNABLES": _tunables(os.environ.get("GLIBC_TUNABLES")),
    }


def _tunables(given: str | None) -> str:
    """The user's tunables of glibc, and by default huge pages for the memory of malloc.

    On a CPU the tensors of a step are allocated anew in each step, and small pages would be faulted
    in again and again.
    """
    tunables = given.split(":") if given else []
    if not any(tunable.startswith(f"{_HUGE_PAGES}=") for tunable in tunables):
        tunables.append(f"{_HUGE_PAGES}=1")
    return ":".join(tunables)


def _wait(
    worlds: dict[str, SubprocessContext], store: JobStore, poll: Callable[[], None]
) -> list[_Failure]:
    """Wait until every rank has ended; return the failures in the order in which they happened.

    Args:
        worlds: The ranks.
        store: The job's store.
        poll: Called often during the wait.
    """
    running = {
        (world, rank): handler.proc
        for world, processes in worlds.items()
        for rank, handler in processes.subprocess_handlers.items()
    }
    failures: list[_Failure] = []
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
                label = f"{world}.{rank}"
                log = Path(worlds[world].stderrs[rank])
                [published] = store.read([f"failed/{label}"])
                failures.append(_Failure(label, process.pid, code, log, published))
                limit = limit or time.monotonic() + _GRACE_S
    return failures


def _describe(failures: Sequence[_Failure]) -> str:
    """Which ranks failed and why, with ranks of the same reason together."""
    ranks: dict[str, list[str]] = {}
    for failure in failures:
        ranks.setdefault(failure.reason(), []).append(failure.rank)
    return "; ".join(
        f"rank{'s' if len(names) > 1 else ''} {', '.join(names)}: {reason}"
        for reason, names in ranks.items()
    )
