"""Two processes in a world of their own, for tests of collectives."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path

import torch.distributed as dist
from fork_server import SERVER

from flowtrain import parent

# A rank that waits for longer than this ends before the test does.
_TIMEOUT = timedelta(seconds=40)


def on_two_ranks(check: Callable[[int], None], folder: Path) -> None:
    """Call a function with its rank in each of two processes; both have to return.

    Args:
        check: The function, which can be pickled.
        folder: Folder for the store of the process group.
    """
    ranks = [
        SERVER.Process(target=_rank, args=(check, rank, str(folder / "store"))) for rank in range(2)
    ]
    try:
        for process in ranks:
            process.start()
        running = {process.sentinel: process for process in ranks}
        while running:
            # A rank that fails leaves the other one in a collective.
            for ended in wait(list(running)):
                process = running.pop(ended)
                process.join()
                assert process.exitcode == 0
    finally:
        for process in ranks:
            process.kill()
            process.join()


def _rank(check: Callable[[int], None], rank: int, store: str) -> None:
    parent.end_with(os.getppid())
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2, timeout=_TIMEOUT
    )
    check(rank)
    dist.destroy_process_group()
