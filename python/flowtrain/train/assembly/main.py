"""The process of one rank: `python -m flowtrain.train.assembly.main`."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

from flowtrain import parent
from flowtrain.config.load import load
from flowtrain.signals import leave_to_parent
from flowtrain.train.assembly.elastic import ElasticProcess
from flowtrain.train.assembly.process import RankProcess
from flowtrain.train.assembly.reads import stream_of, workers_of
from flowtrain.train.control.ending import reason_of
from flowtrain.train.control.job import LAUNCHER_PID, Job
from flowtrain.train.ranks.hook import load_hook


@record
def main(argv: list[str] | None = None) -> None:
    """Run the rank that the arguments and torch's RANK name; exit the process if it fails."""
    if (launcher := os.environ.get(LAUNCHER_PID)) is not None:
        parent.end_with(int(launcher))
        leave_to_parent()
    parser = argparse.ArgumentParser(prog="python -m flowtrain.train.assembly.main")
    parser.add_argument("config", type=Path, help="config.yaml of the run")
    parser.add_argument("--world", required=True, choices=("encoder", "backbone", "colocated"))
    parser.add_argument("--store", required=True, help="host:port of the job's store")
    parser.add_argument("--nonce", required=True, help="name of the attempt")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--joins", action="store_true", help="join a job that goes on without it")
    options = parser.parse_args(argv)
    rank = int(os.environ["RANK"])
    label = f"{options.world}.{rank}"
    process: RankProcess | None = None
    try:
        config = load(options.config)
        stream = stream_of(config, options.world, rank)
        workers = workers_of(config, options.world, rank)
        if config.debug.fault is not None:
            load_hook(config.debug.fault)(label)
        is_elastic = config.elastic and options.world == "encoder"
        process = (ElasticProcess if is_elastic else RankProcess)(
            config,
            options.world,
            rank,
            Job(options.store, options.nonce),
            resume=options.resume,
            workers=workers,
            stream=stream,
        )
        if isinstance(process, ElasticProcess):
            process.joins = options.joins
        process.run()
    except BaseException as error:
        print_failure(label, error)
        if process is not None:
            process.membership.fail(reason_of(error))
        # Reader threads or an unfinished collective would keep the process alive, and the other
        # ranks wait for its end.
        os._exit(1)


def print_failure(label: str, error: BaseException) -> None:
    """Print why a rank ends to standard error."""
    with suppress(OSError):  # The disk of the log may be full; the reason is in the store too.
        if not isinstance(error, KeyboardInterrupt):
            traceback.print_exception(error)
        print(f"flowtrain: {label} ends: {reason_of(error)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
