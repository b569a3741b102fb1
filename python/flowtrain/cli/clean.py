"""`flowtrain clean`: remove pools that killed runs left in shared memory."""

from __future__ import annotations

import argparse
from typing import Any

from flowtrain.clean import left_pools, remove_left_pools
from flowtrain_core import list_pools

_ANOTHER = "another version of FlowTrain"


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("clean", help=__doc__, description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="only list what would be removed")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    removed = [pool.name for pool in left_pools()] if given.dry_run else remove_left_pools()
    for name in removed:
        print(f"{'would remove' if given.dry_run else 'removed'} {name}")
    for pool in list_pools():
        if pool.name not in removed:
            creator = f"process {pool.creator_pid}" if pool.creator_pid else _ANOTHER
            print(f"kept {pool.name}: {pool.error or f'in use, created by {creator}'}")
    if not removed:
        print("no pools to remove")
    return 0
