"""Loaders that differ between ranks, one process per rank; started by `test_packed_ranks.py`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import DataLoaderConfiguration
from torch import distributed as dist
from torch.utils.data import IterableDataset

from flowtrain.data import PackedLoader

Sample = dict[str, Any]
ROWS: list[Sample] = [{"id": i, "input_ids": [i] * (1 + i % 7)} for i in range(48)]
EQUAL: list[Sample] = [{"id": i, "input_ids": [i] * 5} for i in range(48)]


class Stream(IterableDataset[Sample]):
    def __init__(self, rows: list[Sample]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Sample]:
        yield from self.rows


class Sharded(Stream):
    """A stream that is sharded by rank, as a plain loader needs it."""

    def __iter__(self) -> Iterator[Sample]:
        yield from self.rows[dist.get_rank() :: dist.get_world_size()]


def loader(dataset: Any = ROWS, **changes: Any) -> PackedLoader:
    given: dict[str, Any] = {"batch_size": 4, "max_tokens": 100, "microbatches": 2}
    given |= {"collate_fn": lambda batch: [sample["id"] for sample in batch], "timeout_s": 60}
    return PackedLoader(dataset, **{**given, **changes})


def at_epoch(epoch: int) -> PackedLoader:
    made = loader()
    made.set_epoch(epoch)
    return made


def of_numpy(version: str) -> PackedLoader:
    with mock.patch.object(numpy, "__version__", version):
        return loader()


CASES: dict[str, Callable[[int], PackedLoader]] = {
    "alike": lambda rank: loader(shuffle=True),
    "alike, a stream": lambda rank: loader(Stream(ROWS), num_workers=1),
    "alike, a group": lambda rank: loader(group=dist.new_group([0, 1])),
    "seed": lambda rank: loader(seed=rank),
    "data": lambda rank: loader(ROWS[rank:]),
    "microbatches": lambda rank: loader(microbatches=1 + rank),
    "costs": lambda rank: loader(cost=[1.0 + rank] * len(ROWS)),
    "epoch": at_epoch,
    "numpy": lambda rank: of_numpy(f"{rank}.0"),
    "a stream that is sharded": lambda rank: loader(Sharded(ROWS), num_workers=1),
    "equal samples that are sharded": lambda rank: loader(Sharded(EQUAL)),
    "a stream that ends": lambda rank: loader(Stream(ROWS[: len(ROWS) - 16 * rank])),
}


def held() -> tuple[int, int]:
    """Threads and open files of this process."""
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def closed() -> dict[str, Any]:
    """Threads and files after each of several loaders was closed, with one open beside them."""
    group = dist.new_group([0, 1])
    rows, seen = 0, {}
    with loader(group=group) as stays:
        for epoch in range(5):
            with loader(group=group) as made:
                made.set_epoch(epoch)
                rows += sum(len(batch) for batch, _ in made)
            seen[epoch] = held()
        rows += sum(len(batch) for batch, _ in stays)
    return {"rows": rows, "held": seen}


def dropped(_: int) -> PackedLoader:
    """Loaders that end at once, on one rank maybe while the other still connects to it."""
    for _ in range(200):
        loader()
    return loader()


def prepared(rank: int, folder: Path) -> dict[str, Any]:
    """What a loader gives that accelerate has prepared, and what is an error."""
    # From these accelerate knows that there are ranks.
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    options = DataLoaderConfiguration(dispatch_batches=True, split_batches=True)
    accelerator = Accelerator(cpu=True, dataloader_config=options)
    made = accelerator.prepare(loader(shuffle=True))
    accelerator.register_for_checkpointing(made)
    loaded, resumed = [], []
    for number, (batch, _) in enumerate(made):
        loaded += batch
        if number == 2:
            accelerator.save_state(folder / "state")
            accelerator.wait_for_everyone()
        elif number > 2:
            resumed += batch
    accelerator.load_state(folder / "state")
    found: dict[str, Any] = {
        "loaded": loaded,
        "resumes": resumed == [sample for batch, _ in made for sample in batch],
        "skip": outcome(lambda _: skip_first_batches(loader(), 2), rank),
        "prepare_data_loader": outcome(lambda _: accelerator.prepare_data_loader(loader()), rank),
    }
    Accelerator(cpu=True, gradient_accumulation_steps=2)
    with torch.no_grad():
        found["divided, without gradients"] = outcome(lambda _: loader(targets="input_ids"), rank)
    found["divided"] = outcome(lambda _: loader(targets="input_ids"), rank)
    return found


def outcome(make: Callable[[int], PackedLoader], rank: int) -> dict[str, Any]:
    loaded: list[int] = []
    try:
        for batch, _ in make(rank):
            loaded += batch
    except (ValueError, RuntimeError, AttributeError) as error:
        return {"loaded": loaded, "error": f"{type(error).__name__}: {error}"}
    return {"loaded": loaded, "error": None}


def run(folder: Path, rank: int) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2
    )
    found = {name: outcome(make, rank) for name, make in CASES.items()}
    found["closed"] = closed()
    found["dropped"] = outcome(dropped, rank)
    found["prepared"] = prepared(rank, folder)
    dist.barrier()
    alone = loader(timeout_s=1)  # Both make it within that time.
    if rank == 0:
        found["alone"] = outcome(lambda _: alone, rank)
        found["made alone"] = outcome(lambda _: loader(timeout_s=0.5), rank)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]))
    # A process group whose timeout expired cannot be destroyed in order.
    os._exit(0)
