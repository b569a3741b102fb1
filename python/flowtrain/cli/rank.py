"""`flowtrain rank`: one rank of a run that `flowtrain host` hosts, as torchrun starts it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

_WORLDS = ("encoder", "backbone", "colocated")
_HELP = "one rank of a hosted run, as torchrun starts it"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("rank", help=_HELP, description=__doc__)
    parser.add_argument(
        "--job", type=Path, required=True, metavar="FOLDER", help="folder of the run"
    )
    parser.add_argument(
        "--world", required=True, choices=_WORLDS, help="world of the rank; its number is RANK"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="S",
        help="seconds to wait until this host has the run (default: 300)",
    )
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    from flowtrain.train.assembly.main import run_external_rank

    run_external_rank(given.job.absolute(), given.world, timeout_s=given.timeout)
    return 0
