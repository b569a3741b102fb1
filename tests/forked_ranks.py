"""Runs whose ranks are forked from a process that has imported their modules.

The imports of a rank take longer than a short run. Tests of what a run computes start its ranks
here; tests of how `flowtrain train` starts and ends ranks use `support.Run`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from typing import Any

from fork_server import SERVER
from forked import redirect, skip_slow_parts
from support import nothing_left

from flowtrain import parent
from flowtrain.config import ConfigError, RunConfig, from_dict
from flowtrain.models import ModelError
from flowtrain.train.control.job import LAUNCHER_PID, Job
from flowtrain.train.launch.errors import RunFailed
from flowtrain.train.launch.external import wait_for_ranks
from flowtrain.train.launch.host import RunHost
from flowtrain.train.launch.run import train
from flowtrain.train.state import logs


def forked_ranks(
    config: RunConfig,
    host: RunHost,
    *,
    resume: bool,
    meanwhile: Callable[[list[ForkServerProcess]], None] | None = None,
) -> None:
    """Start every rank and wait until all have ended, like `run_local_ranks`.

    Args:
        config: The run.
        host: The job's host.
        resume: Resume from the latest checkpoint.
        meanwhile: Called in a thread with the ranks, once all have joined; it removes those from
            the list that it ends, and adds those that it starts.

    Raises:
        RunFailed: A rank failed, died, or did not join within `flow.start_timeout_s`.
    """
    with _started(config, host.job, resume) as ranks:
        _wait_until_joined(config, host, ranks)
        with ThreadPoolExecutor(1) as thread:
            disturbed = thread.submit(_disturb, meanwhile, ranks)
            try:
                wait_for_ranks(config, host)
            finally:
                disturbed.result()
        for rank in ranks:
            rank.join()
            assert rank.exitcode == 0, rank.name


def _disturb(
    meanwhile: Callable[[list[ForkServerProcess]], None] | None, ranks: list[ForkServerProcess]
) -> None:
    """Call a function with the ranks, and end them if it fails."""
    try:
        if meanwhile is not None:
            meanwhile(ranks)
    except BaseException:
        for rank in ranks:
            rank.kill()
        raise


def trained(tree: dict[str, Any], *, resume: bool = False) -> list[dict[str, Any]]:
    """Metrics of every step of a run that must succeed."""
    config = from_dict(tree)
    train(config, resume=resume, run_ranks=forked_ranks)
    return logs.read_log(config.run / logs.METRICS)


def failure(tree: dict[str, Any], *, resume: bool = False) -> str:
    """The error of a run that must fail and must leave no pool."""
    with nothing_left():
        try:
            trained(tree, resume=resume)
        except (ConfigError, ModelError, RunFailed) as error:
            return str(error)
    raise AssertionError(f"the run in {tree['run']} succeeded")


def _wait_until_joined(config: RunConfig, host: RunHost, ranks: list[ForkServerProcess]) -> None:
    """Return once all ranks have joined or one that joined has failed: `wait_for_ranks` reports it.

    Raises:
        RunFailed: A rank ended before it joined, or did not join within `flow.start_timeout_s`.
    """
    logs = config.run / "logs" / host.job.nonce
    end = time.monotonic() + config.flow.start_timeout_s
    joined: set[str] = set()
    while True:
        late = time.monotonic() > end
        # Read before the lanes: a rank that has ended has joined by then, or never will.
        codes = {rank.name: rank.exitcode for rank in ranks}
        lanes = host.pool.lanes()
        joined |= {lane.label for lane in lanes}
        absent = {name: code for name, code in codes.items() if name not in joined and code != 0}
        failed = any(host.store.has(f"failed/{name}") for name in codes)
        if failed or not absent or any(lane.state == "dead" for lane in lanes):
            return
        for name, code in absent.items():
            if code is not None:
                text = (logs / name).read_text(errors="replace")
                raise RunFailed(f"rank {name}: exit code {code} before it joined: {text}")
        if late:
            raise RunFailed(
                f"not joined within flow.start_timeout_s={config.flow.start_timeout_s:g}: "
                f"{', '.join(absent)}; logs are in {logs}"
            )
        time.sleep(0.02)


@contextmanager
def _started(config: RunConfig, job: Job, resume: bool) -> Iterator[list[ForkServerProcess]]:
    ranks: list[ForkServerProcess] = []
    try:
        for world in config.flow.chosen.worlds:
            ranks += [
                start_rank(config, job, world.name, rank, size=world.size, resume=resume)
                for rank in range(world.size)
            ]
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.join()


def start_rank(
    config: RunConfig,
    job: Job,
    world: str,
    rank: int,
    *,
    size: int = 1,
    resume: bool = False,
    joins: bool = False,
) -> ForkServerProcess:
    """Start one rank, or an encoder rank that joins the run, and leaves it at SIGTERM."""
    logs = config.run / "logs" / job.nonce
    logs.mkdir(parents=True, exist_ok=True)
    arguments = [str(config.run / "config.yaml"), "--world", world]
    arguments += ["--store", job.address, "--nonce", job.nonce]
    arguments += ["--resume"] * resume + ["--joins"] * joins
    label = f"{world}.{rank}"
    process = SERVER.Process(
        name=label, target=_rank, args=(arguments, rank, size, str(logs / label), joins)
    )
    process.start()
    return process


def _rank(arguments: list[str], rank: int, size: int, log: str, joins: bool) -> None:
    """Run one rank to its end, in the forked process."""
    from flowtrain.train.assembly.main import main  # Forked with it.

    # The server ends with the tests.
    parent.end_with(os.getppid())
    skip_slow_parts()
    redirect((log, log))
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    if joins:
        os.environ[LAUNCHER_PID] = str(os.getppid())
    main(arguments)
