"""`flowtrain encoder`: encoder ranks of a training loop, or further ones of a frozen run."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("encoder", help=__doc__, description=__doc__)
    parser.add_argument(
        "--job", type=Path, required=True, metavar="FOLDER", help="folder of the loop or the run"
    )
    parser.add_argument(
        "--ranks",
        type=int,
        metavar="N",
        help="number of encoder ranks; by default that of the loop, or one if RANK is set or it is "
        "a run",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="S",
        help="seconds to wait until the loop or the run begins (default: 300)",
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    from flowtrain.train.connect.encoders import run_encoder_ranks

    run_encoder_ranks(
        given.job.absolute(),
        ranks=given.ranks,
        rank=os.environ.get("RANK"),
        timeout_s=given.timeout,
    )
    return 0
