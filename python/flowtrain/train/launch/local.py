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

from torch.distributed import DistError
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std, start_processes
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from flowtrain import progress
from flowtrain.config.layout import WorldLayout
from flowtrain.config.schema import RunConfig
from flowtrain.signals import withheld
from flowtrain.train.control.job import LAUNCHER_PID, Job
from flowtrain.train.control.store import JobStore
from flowtrain.train.control.watcher import names_another
from flowtrain.train.launch.errors import RunFailed
from flowtrain.train.launch.host import RunHost
from flowtrain.train.launch.signals import without_handlers_of_torch
from flowtrain.train.launch.tail import Tail

# After the first failure, the other ranks have this long to end and report it.
_GRACE_S = 10.0
_POLL_S = 0.1
# Timeout for a killed process to end.
_END_S = 5
_HUGE_PAGES = "glibc.malloc.hugetlb"


@dataclass(frozen=True, slots=True)
class Failure:
    """How a rank ended that did not complete."""

    label: str
    pid: int
    exit_code: int
    log: Path
    given: str | None
    """Reason that the rank gave; None if it gave none."""

    @property
    def rank(self) -> str:
        return f"{self.label} (pid {self.pid})"

    def reason(self) -> str:
        """The reason that the rank gave, or else how its process ended."""
        if self.given is not None:
            return self.given
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
    worlds = [(world, range(world.size)) for world in config.flow.chosen.worlds]
    if failures := run_ranks(config, host.job, worlds, host.store, host.poll, resume=resume):
        raise run_failed(failures)


def run_ranks(
    config: RunConfig,
    job: Job,
    worlds: Iterable[tuple[WorldLayout, Sequence[int]]],
    store: JobStore,
    poll: Callable[[], None] | None = None,
    *,
    resume: bool,
) -> list[Failure]:
    """Start ranks, and wait until all have ended; they end with the block of the caller, too.

    Args:
        config: The run, whose folder holds its configuration.
        job: Where the job is.
        worlds: Worlds of the run, with the ranks of each that are started.
        store: The job's store.
        poll: Called often during the wait.
        resume: Resume from the latest checkpoint.

    Returns:
        The failures, in the order in which they happened.
    """
    logs = config.run / "logs" / job.nonce
    started: dict[str, SubprocessContext] = {}
    try:
        for world, ranks in worlds:
            started[world.name] = _start(config, job, world, ranks, logs=logs, resume=resume)
        printed = _printed(started.values()) if progress.holds_stdout() else None

        def poll_and_print() -> None:
            if poll is not None:
                poll()
            _print_new(printed)

        failures = _wait(started, store, poll_and_print)
        _print_new(printed)
        return failures
    finally:
        _end(started.values())


def run_failed(failures: Sequence[Failure]) -> RunFailed:
    """The error of a run, which names the failure first that is the consequence of no other."""
    failures = sorted(failures, key=Failure.is_consequence)
    return RunFailed(
        f"the run ended early; {_describe(failures)}; the log of {failures[0].label} is "
        f"{failures[0].log}"
    )


def _start(
    config: RunConfig,
    job: Job,
    world: WorldLayout,
    ranks: Sequence[int],
    *,
    logs: Path,
    resume: bool,
) -> SubprocessContext:
    arguments = (
        *("-m", "flowtrain.train.assembly.main", str(config.run / "config.yaml")),
        *("--world", world.name, "--store", job.address, "--nonce", job.nonce),
        *(("--resume",) if resume else ()),
    )
    folder = logs / world.name
    folder.mkdir(parents=True, exist_ok=True)
    # Where there is a bar, this process prints above it what that rank prints.
    shows = "backbone" in world.modules and not progress.holds_stdout()
    redirects = {n: Std.ERR if shows and rank == 0 else Std.ALL for n, rank in enumerate(ranks)}
    with without_handlers_of_torch(), withheld():
        processes = start_processes(
            name=world.name,
            entrypoint=sys.executable,
            args=dict.fromkeys(redirects, arguments),
            envs={
                n: {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(n),
                    "WORLD_SIZE": str(world.size),
                    **memory_and_threads(),
                    "PYTHONUNBUFFERED": "1",
                    LAUNCHER_PID: str(os.getpid()),
                }
                for n, rank in enumerate(ranks)
            },
            logs_specs=DefaultLogsSpecs(log_dir=str(folder), redirects=redirects),
        )
    assert isinstance(processes, SubprocessContext)
    return processes


def _printed(worlds: Iterable[SubprocessContext]) -> Tail:
    """What the first rank with the backbone, of the first world, prints."""
    return Tail(Path(next(iter(worlds)).stdouts[0]))


def _print_new(printed: Tail | None) -> None:
    for line in printed.lines() if printed is not None else ():
        print(line)


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
) -> list[Failure]:
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
                # The rank's watcher adds the cause to the log, and not to the store.
                given = _logged(log, label) or _published(store, label)
                failures.append(Failure(label, process.pid, code, log, given))
                limit = limit or time.monotonic() + _GRACE_S
    return failures


def _logged(log: Path, label: str) -> str | None:
    """The last reason that a rank left in its log; None if it left none."""
    text = log.read_text(errors="replace") if log.exists() else ""
    prefix = f"flowtrain: {label} ends: "
    # On a full disk, the last line may be incomplete or missing.
    complete = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    reasons = [line.removeprefix(prefix).rstrip() for line in complete if line.startswith(prefix)]
    return reasons[-1] if reasons else None


def _published(store: JobStore, label: str) -> str | None:
    """The reason that a rank left in the store; None if it left none, or the store is lost."""
    with suppress(DistError):  # Its host may be another process, which has ended too.
        [published] = store.read([f"failed/{label}"])
        return None if published is None else str(published)
    return None


def _describe(failures: Sequence[Failure]) -> str:
    """Which ranks failed and why, with ranks of the same reason together."""
    ranks: dict[str, list[str]] = {}
    for failure in failures:
        ranks.setdefault(failure.reason(), []).append(failure.rank)
    return "; ".join(
        f"rank{'s' if len(names) > 1 else ''} {', '.join(names)}: {reason}"
        for reason, names in ranks.items()
    )
