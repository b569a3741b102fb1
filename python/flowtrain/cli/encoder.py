"""`flowtrain encoder`: an encoder rank of a training loop (`flowtrain.connect`)."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("encoder", help=__doc__, description=__doc__)
    parser.add_argument(
        "--job", type=Path, required=True, metavar="FOLDER", help="folder that the loop gives"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="S",
        help="seconds to wait until the loop begins its steps (default: 300)",
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    from flowtrain.train.connect.job_file import wait_for_job
    from flowtrain.train.ranks.main import main

    job, resume = wait_for_job(given.job, timeout_s=given.timeout)
    # torchrun sets it, where it starts more than one.
    os.environ.setdefault("RANK", "0")
    config = given.job.absolute() / "config.yaml"
    arguments = [str(config), "--world", "encoder", "--store", job.address, "--nonce", job.nonce]
    main([*arguments, *(["--resume"] if resume else [])])
    return 0
