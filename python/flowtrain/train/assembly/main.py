"""The process of one rank, which the launcher has started, or the user."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

from flowtrain import parent
from flowtrain.config.checks import ConfigError
from flowtrain.config.load import load
from flowtrain.error_texts import reason_of
from flowtrain.signals import leave_to_parent
from flowtrain.train.assembly.elastic import ElasticProcess
from flowtrain.train.assembly.process import RankProcess
from flowtrain.train.assembly.reads import stream_of, workers_of
from flowtrain.train.control.ending import exit_at_once
from flowtrain.train.control.job import LAUNCHER_PID, Job
from flowtrain.train.ranks.hook import load_hook
from flowtrain.train.state.job_file import wait_for_job
from flowtrain.train.state.run_folder import CONFIG

WORLDS = ("encoder", "backbone", "colocated")


@record
def main(argv: list[str] | None = None) -> None:
    """Run the rank that the arguments and torch's RANK name; exit the process if it fails."""
    if (launcher := os.environ.get(LAUNCHER_PID)) is not None:
        parent.end_with(int(launcher))
        leave_to_parent()
    parser = argparse.ArgumentParser(prog="python -m flowtrain.train.assembly.main")
    parser.add_argument("config", type=Path, help="config.yaml of the run")
    parser.add_argument("--world", required=True, choices=WORLDS)
    parser.add_argument("--store", required=True, help="host:port of the job's store")
    parser.add_argument("--nonce", required=True, help="name of the attempt")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--joins", action="store_true", help="join a job that goes on without it")
    options = parser.parse_args(argv)
    job = Job(options.store, options.nonce)
    run_rank(options.config, options.world, job, resume=options.resume, joins=options.joins)


@record
def run_external_rank(folder: Path, world: str, *, timeout_s: float) -> None:
    """Run the rank of a hosted run that torch's RANK names; exit the process if it fails.

    Args:
        folder: Folder of the run.
        world: `encoder`, `backbone`, or `colocated`.
        timeout_s: Time to wait until the run is hosted.

    Raises:
        ConfigError: It was not in time, or RANK is not set.
    """
    if not os.environ.get("RANK", "").isdecimal():
        raise ConfigError("RANK is not set: start this command by torchrun, or by your scheduler")
    found = wait_for_job(folder, timeout_s=timeout_s, again=True)
    run_rank(
        folder / CONFIG,
        world,
        found.job,
        resume=found.resume,
        interface=found.interface,
        on_host=found.name,
    )


def run_rank(
    path: Path,
    world: str,
    job: Job,
    *,
    resume: bool,
    joins: bool = False,
    interface: str = "",
    on_host: str = "",
) -> None:
    """Run a rank; exit the process if it fails.

    Args:
        path: `config.yaml` of the run.
        world: `encoder`, `backbone`, or `colocated`; torch's RANK is the rank in it.
        job: Where the job is.
        resume: Resume from the latest checkpoint.
        joins: Whether it joins a job that goes on without it.
        interface: Address of this host that ranks on other hosts reach; empty if there are none.
        on_host: Name of this host for them.
    """
    rank = int(os.environ["RANK"])
    label = f"{world}.{rank}"
    process: RankProcess | None = None
    try:
        config = load(path)
        stream = stream_of(config, world, rank)
        workers = workers_of(config, world, rank)
        if config.debug.fault is not None:
            load_hook(config.debug.fault)(label)
        is_elastic = config.elastic and world == "encoder"
        process = (ElasticProcess if is_elastic else RankProcess)(
            config,
            world,
            rank,
            job,
            resume=resume,
            workers=workers,
            stream=stream,
            interface=interface,
            on_host=on_host,
        )
        if isinstance(process, ElasticProcess):
            process.joins = joins
        process.run()
    except BaseException as error:
        print_failure(label, error)
        if process is not None:
            process.membership.fail(reason_of(error))
        # Reader threads or an unfinished collective would keep the process alive, and the other
        # ranks wait for its end.
        exit_at_once()


def print_failure(label: str, error: BaseException) -> None:
    """Print why a rank ends to standard error."""
    with suppress(OSError):  # The disk of the log may be full; the reason is in the store too.
        if not isinstance(error, KeyboardInterrupt):
            traceback.print_exception(error)
        print(f"flowtrain: {label} ends: {reason_of(error)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    # Excludes what was imported from garbage collections, here and at the end of the process.
    gc.freeze()
    main()
