"""Is `flowtrain train` faster than a plain loop, on the data and the model of the demo?

Alternates the plain padded DDP loop (`flowtrain/bench/train/plain_loop.py`), the same loop with all
samples read, decoded and tokenized before its first step, and `flowtrain train`, and prints the
ratios of their tokens per second. The last line is JSON. Exits with 1 if losses differ.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from flowtrain import progress
from flowtrain.bench.train.compare import (
    alternate,
    conditions_of,
    control_overhead,
    loss_differences,
    rates,
    ratio,
    same_losses,
)
from flowtrain.bench.train.options import add_options, task
from flowtrain.bench.train.runs import Run, run_flow, run_plain
from flowtrain.data.digits import write_digits
from flowtrain.train.demo import demo_config


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=("digits",), default="digits")
    parser.add_argument("--json", action="store_true", help="no table before the JSON line")
    add_options(parser, steps=33, rounds=5, batch_size=16)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        demo = demo_config(root)
        wanted = task(
            given,
            model=demo.model.folder,
            data=demo.data.path,
            global_batch=demo.train.global_batch,
            microbatch_tokens=demo.train.microbatch_tokens,
            # Without the schedule of the demo, which depends on the number of steps.
            optim={
                "lr": demo.optim.lr,
                "betas": list(demo.optim.betas),
                "clip_norm": demo.optim.clip_norm,
            },
        )
        samples = wanted.steps * wanted.global_batch
        write_digits(root / "data", train=samples, heldout=1, seed=wanted.seed)
        variants: dict[str, Callable[[Path], Run]] = {
            "plain": lambda at: run_plain(wanted, "padded", at),
            "plain_without_reading": lambda at: run_plain(wanted, "padded", at, in_memory=True),
            "flow": partial(run_flow, wanted),
        }
        with progress.bar("training", ticks=False):
            runs = alternate(variants, root / "runs", rounds=given.rounds)
    result = {
        "bench": "train",
        "data": given.data,
        "vs_plain": ratio(runs["flow"], runs["plain"]),
        "vs_plain_without_reading": ratio(runs["flow"], runs["plain_without_reading"]),
        "control_overhead": control_overhead(runs["flow"]),
        **loss_differences(runs["flow"][0], runs["plain"][0], "plain"),
        **rates(runs),
        "layout": runs["flow"][0].layout,
        **conditions_of(wanted),
    }
    if not given.json:
        for key, value in result.items():
            print(f"{key:>26}  {value}")
    print(json.dumps(result))
    return 0 if same_losses(result) else 1


if __name__ == "__main__":
    sys.exit(main())
