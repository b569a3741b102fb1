"""Both worlds as gangs of processes on this host, started by torch's launcher API and watched."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std, start_processes
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from flowtrain.config.schema import RunConfig
from flowtrain.train.control.job import LAUNCHER, Job, JobHost
from flowtrain.train.control.store import Board
from flowtrain.train.launch.signals import handlers_kept

# After a first death the others are left this long to name it themselves.
_GRACE_S = 10.0
_POLL_S = 0.1


class RunFailed(RuntimeError):
    """A rank ended the run; the message names it, its reason, and its log."""


@dataclass(frozen=True, slots=True)
class _Death:
    label: str
    pid: int
    exit_code: int
    log: Path
    reason: str | None
    """What the rank left on the board."""

    @property
    def who(self) -> str:
        return f"{self.label} (pid {self.pid})"

    def why(self) -> str:
        """What the rank said of its end, or how it ended without a word."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        ends = f"flowtrain: {self.label} ends: "
        # A full disk cuts a line short, or leaves none.
        whole = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
        said = [line.removeprefix(ends).rstrip() for line in whole if line.startswith(ends)]
        # The log comes first: what the rank's watcher found later is there alone.
        if said:
            return said[-1]
        if self.reason is not None:
            return self.reason
        if self.exit_code < 0:
            return f"killed by signal {-self.exit_code}"
        return f"exit code {self.exit_code}"


def run_gangs(config: RunConfig, host: JobHost, *, resume: bool) -> None:
    """Start every rank, and wait until all have ended.

    Args:
        config: The run, whose folder holds its configuration.
        host: The job that the ranks find each other in.
        resume: Go on from the latest checkpoint.

    Raises:
        RunFailed: A rank failed or died; all others have ended.
    """
    job = host.job
    sizes = {"backbone": config.flow.backbones, "encoder": config.flow.encoders}
    logs = config.run / "logs" / job.nonce
    gangs: dict[str, SubprocessContext] = {}
    try:
        for world, size in sizes.items():
            gangs[world] = _start(config, job, world, size, logs=logs, resume=resume)
        deaths = _wait(gangs, Board(job.store, job.nonce, timeout_s=config.flow.start_deadline_s))
    finally:
        for gang in gangs.values():
            gang.close(timeout=5)
    if deaths:
        raise RunFailed(f"the run ended early; {_describe(deaths)}; logs are in {logs}")


def _start(
    config: RunConfig, job: Job, world: str, size: int, *, logs: Path, resume: bool
) -> SubprocessContext:
    arguments = (
        *("-m", "flowtrain.train.ranks.worker", str(config.run / "config.yaml")),
        *("--world", world, "--store", job.store, "--nonce", job.nonce),
        *(("--resume",) if resume else ()),
    )
    folder = logs / world
    folder.mkdir(parents=True)
    # The first backbone rank shows the run's progress on this terminal.
    shown = {r: Std.ERR if world == "backbone" and r == 0 else Std.ALL for r in range(size)}
    with handlers_kept():
        gang = start_processes(
            name=world,
            entrypoint=sys.executable,
            args=dict.fromkeys(range(size), arguments),
            envs={
                r: {
                    "RANK": str(r),
                    "LOCAL_RANK": str(r),
                    "WORLD_SIZE": str(size),
                    "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
                    "PYTHONUNBUFFERED": "1",
                    LAUNCHER: str(os.getpid()),
                }
                for r in range(size)
            },
            logs_specs=DefaultLogsSpecs(log_dir=str(folder), redirects=shown),
        )
    assert isinstance(gang, SubprocessContext)
    return gang


def _wait(gangs: dict[str, SubprocessContext], board: Board) -> list[_Death]:
    """Wait until every rank has ended; those that failed, in the order of their ends."""
    running = {
        (world, rank): handler.proc
        for world, gang in gangs.items()
        for rank, handler in gang.subprocess_handlers.items()
    }
    deaths: list[_Death] = []
    limit: float | None = None
    while running and (limit is None or time.monotonic() < limit):
        time.sleep(_POLL_S)
        for (world, rank), process in list(running.items()):
            code = process.poll()
            if code is None:
                continue
            del running[world, rank]
            if code != 0:
                label = f"{world}.{rank}"
                log = Path(gangs[world].stderrs[rank])
                [reason] = board.read([f"failed/{label}"])
                deaths.append(_Death(label, process.pid, code, log, reason))
                limit = limit or time.monotonic() + _GRACE_S
    return deaths


def _describe(deaths: Sequence[_Death]) -> str:
    """Who ended and why; ranks that met the same error are said in one breath.

    Causes come first: who was killed or gave a reason of its own is one, who names a peer is not.
    """
    together: dict[str, list[str]] = {}
    for death in deaths:
        together.setdefault(death.why(), []).append(death.who)
    return "; ".join(
        f"rank{'s' if len(who) > 1 else ''} {', '.join(who)}: {why}"
        for why, who in sorted(together.items(), key=lambda pair: " died" in pair[0])
    )
