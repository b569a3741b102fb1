"""Both worlds on this host: started by torch's launcher API, watched, and cleaned up after."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std, start_processes
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from flowtrain.config.load import dump
from flowtrain.config.schema import ConfigError, RunConfig
from flowtrain.data.jsonl import JsonlFile
from flowtrain.models.adapter import adapter_for
from flowtrain.train import metrics
from flowtrain.train.checkpoint import latest, read_mark
from flowtrain.train.final import write_final
from flowtrain.train.job import Job, JobHost

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

    @property
    def who(self) -> str:
        return f"{self.label} (pid {self.pid})"

    def why(self) -> str:
        """What the rank said of its end, or how it ended without a word."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        ends = f"flowtrain: {self.label} ends: "
        said = [line.removeprefix(ends) for line in lines if line.startswith(ends)]
        if said:
            return said[-1]
        if self.exit_code < 0:
            return f"killed by signal {-self.exit_code}"
        return f"exit code {self.exit_code}"


def train(config: RunConfig, *, resume: bool = False) -> dict[str, Any]:
    """Train on this host: start every rank, wait for the end, write `RUN/final`.

    Args:
        config: The run.
        resume: Go on from the latest checkpoint, if there is one.

    Returns:
        The summary, also written to `RUN/summary.json`.

    Raises:
        ConfigError: The run folder is in use or holds another run, or the port is taken.
        RunFailed: A rank failed or died; all others have ended.
    """
    # What can be wrong from the start is better said before every rank has loaded its model.
    adapter_for(config.model.folder)
    JsonlFile(config.data.path)
    started = time.perf_counter()
    with _run_folder(config, resume=resume):
        host = JobHost(config)
        try:
            _run_gangs(config, host.job, resume=resume)
        finally:
            host.close()
        checkpoint = latest(config.run)
        assert checkpoint is not None
        change = write_final(config, checkpoint)
    summary = {**_summary(config), **change, "seconds": time.perf_counter() - started}
    config.run.joinpath("summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    return summary


@contextmanager
def _run_folder(config: RunConfig, *, resume: bool) -> Iterator[None]:
    """The run's folder, held by one launcher, with its logs cut to where the run goes on."""
    run = config.run
    run.mkdir(parents=True, exist_ok=True)
    with run.joinpath("lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"run={run}: another launcher is training there; wait for it or choose another "
                "folder"
            ) from error
        logs = [run / name for name in (metrics.METRICS, metrics.TIMING, "plan.log")]
        if not resume and any(log.exists() for log in logs):
            raise ConfigError(
                f"run={run}: it holds a run already; add --resume to go on with it, or choose "
                "another folder"
            )
        checkpoint = latest(run) if resume else None
        step = 0 if checkpoint is None else read_mark(checkpoint, config).step + 1
        for log in logs:
            metrics.cut(log, step)
        for part in run.joinpath("checkpoints").glob("*.part"):
            shutil.rmtree(part)
        run.joinpath("config.yaml").write_text(dump(config))
        yield


def _run_gangs(config: RunConfig, job: Job, *, resume: bool) -> None:
    sizes = {"backbone": config.flow.backbones, "encoder": config.flow.encoders}
    logs = config.run / "logs" / job.nonce
    gangs = {
        world: _start(config, job, world, size, logs=logs, resume=resume)
        for world, size in sizes.items()
    }
    try:
        deaths = _wait(gangs, logs)
    finally:
        for gang in gangs.values():
            gang.close(timeout=5)
    if deaths:
        raise RunFailed(f"the run ended early; {_describe(deaths)}; logs are in {logs}")


def _start(
    config: RunConfig, job: Job, world: str, size: int, *, logs: Path, resume: bool
) -> SubprocessContext:
    arguments = (
        *("-m", "flowtrain.train.worker", str(config.run / "config.yaml")),
        *("--world", world, "--store", job.store, "--nonce", job.nonce),
        *(("--resume",) if resume else ()),
    )
    folder = logs / world
    folder.mkdir(parents=True)
    # The first backbone rank shows the run's progress on this terminal.
    shown = {r: Std.ERR if world == "backbone" and r == 0 else Std.ALL for r in range(size)}
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
            }
            for r in range(size)
        },
        logs_specs=DefaultLogsSpecs(log_dir=str(folder), redirects=shown),
    )
    assert isinstance(gang, SubprocessContext)
    return gang


def _wait(gangs: dict[str, SubprocessContext], logs: Path) -> list[_Death]:
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
                log = Path(gangs[world].stderrs[rank])
                deaths.append(_Death(f"{world}.{rank}", process.pid, code, log))
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


def _summary(config: RunConfig) -> dict[str, Any]:
    steps = metrics.read_log(config.run / metrics.METRICS)
    times = metrics.read_log(config.run / metrics.TIMING)
    seconds = sum(t["seconds"] for t in times)
    return {
        "mode": config.flow.mode,
        "encoder_ranks": config.flow.encoders,
        "backbone_ranks": config.flow.backbones,
        "steps": len(steps),
        "loss": steps[-1]["loss"],
        "target_tokens": sum(s["target_tokens"] for s in steps),
        "tokens_per_s": sum(t["tokens"] for t in times) / seconds,
        "mfu": sum(t["mfu"] * t["seconds"] for t in times) / seconds,
        "peak_flops": times[-1]["peak_flops"],
        "bytes_through_pool": times[-1]["bytes_through_pool"],
        "train_seconds": seconds,
    }
