"""Processes of ranks: how they are started, why they ended, and their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
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
from flowtrain.train.launch.signals import without_handlers_of_torch

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


def start_world(
    config: RunConfig,
    job: Job,
    world: WorldLayout,
    ranks: Sequence[int],
    *,
    folder: Path,
    resume: bool,
    joins: bool = False,
) -> SubprocessContext:
    """Start ranks of a world.

    Args:
        config: The run, whose folder holds its configuration.
        job: Where the job is.
        world: The world.
        ranks: Those of its ranks that are started.
        folder: Folder of their logs.
        resume: Resume from the latest checkpoint.
        joins: Whether they join a job that goes on if they fail.
    """
    arguments = (
        *("-m", "flowtrain.train.assembly.main", str(config.run / "config.yaml")),
        *("--world", world.name, "--store", job.address, "--nonce", job.nonce),
        *(("--resume",) if resume else ()),
        *(("--joins",) if joins else ()),
    )
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
                    "LOCAL_RANK": str(n if len(ranks) > 1 else rank),
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


def end_processes(worlds: Iterable[SubprocessContext]) -> None:
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


def failure_of(label: str, pid: int, code: int, log: Path, *, store: JobStore) -> Failure:
    """How a rank has ended, with the reason that it gave."""
    # The rank's watcher adds the cause to the log, and not to the store.
    given = _logged(log, label) or _published(store, label)
    return Failure(label, pid, code, log, given)


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
