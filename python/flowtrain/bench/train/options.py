"""Options that the comparisons share."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowtrain.bench.train.runs import Task


def add_options(
    parser: argparse.ArgumentParser, *, steps: int, rounds: int, batch_size: int
) -> None:
    """Add the options that `task` reads, with a benchmark's own defaults."""
    parser.add_argument("--rounds", type=int, default=rounds, help="alternated runs of each")
    parser.add_argument("--steps", type=int, default=steps, help="of a run, warm-up included")
    parser.add_argument("--warmup", type=int, default=3, help="steps that are not measured")
    parser.add_argument("--seed", type=int, default=0, help="of data and weights")
    parser.add_argument(
        "--flow",
        type=json.loads,
        default={},
        metavar="JSON",
        help="fields of the section `flow` of the configuration, such as '{\"backbone_ranks\": 2}'",
    )
    parser.add_argument(
        "--ranks",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="ranks of the plain loop (default: one per core; on cuda give the devices)",
    )
    parser.add_argument("--threads", type=int, default=1, help="torch threads per rank")
    parser.add_argument("--workers", type=int, default=1, help="processes that read for each rank")
    parser.add_argument(
        "--batch-size",
        type=int,
        default=batch_size,
        help="samples of a padded microbatch of a rank",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")


def task(given: argparse.Namespace, *, model: Path, data: Path, **fields: Any) -> Task:
    """The training that the options describe, on this model and these samples."""
    from flowtrain.bench.train.runs import Task

    names = ("steps", "warmup", "seed", "flow", "ranks", "threads", "workers", "batch_size")
    options = {name: getattr(given, name) for name in (*names, "device", "dtype")}
    return Task(model=model, data=data, **options, **fields)
