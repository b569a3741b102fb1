"""How far is the layout that `flow.layout: auto` chooses from the best one?

Trains four loads, strict and frozen, in four layouts, alternated, and compares the layout that is
chosen with the fastest. The loads are the demo's strips, large images with short text, small
images with long text, and text with an image in one of ten samples. The last line is JSON:
`regret` is the largest share by which a chosen layout is slower than the best one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from flowtrain import progress
from flowtrain.bench.conditions import conditions
from flowtrain.bench.train.compare import alternate
from flowtrain.bench.train.runs import Task, flow_config, run_flow
from flowtrain.bench.train.synthetic import write_samples
from flowtrain.config.layout import RankLayout
from flowtrain.data.digits import write_digits
from flowtrain.train.launch.layout import with_layout

LAYOUTS = (
    RankLayout.colocated_on(2),
    RankLayout.decoupled(1, 1),
    RankLayout.decoupled(1, 2),
    RankLayout.decoupled(2, 1),
)
MODES = ("strict", "frozen")
BATCH, MICROBATCH_TOKENS = 16, 2048
# Text tokens, and image tokens, of a sample: minimum and maximum.
LOADS = {
    "encoder-heavy": ((20, 40), (64, 256)),
    "backbone-heavy": ((150, 500), (1, 8)),
    "text": ((60, 300), (16, 64)),
}
IMAGE_SHARE = {"text": 0.1}


def write_load(folder: Path, load: str, samples: int) -> None:
    if load == "demo":
        write_digits(folder, train=samples, heldout=1, seed=0)
        return
    draw = random.Random(load)
    text, image = LOADS[load]
    tokens = [
        (
            draw.randint(*text),
            draw.randint(*image) if draw.random() < IMAGE_SHARE.get(load, 1.0) else 0,
        )
        for _ in range(samples)
    ]
    write_samples(folder, tokens, seed=0, max_tokens=MICROBATCH_TOKENS)


def flow_of(layout: RankLayout, mode: str) -> dict[str, Any]:
    if layout.colocated:
        return {"mode": mode, "ranks": layout.backbone_ranks}
    return {
        "mode": mode,
        "encoder_ranks": layout.encoder_ranks,
        "backbone_ranks": layout.backbone_ranks,
    }


def compare(root: Path, load: str, mode: str, given: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second of every layout, and of the chosen one."""

    def task(flow: dict[str, Any]) -> Task:
        return Task(
            model=root / "model",
            data=root / "train.jsonl",
            steps=given.steps,
            warmup=given.warmup,
            global_batch=BATCH,
            microbatch_tokens=MICROBATCH_TOKENS,
            batch_size=BATCH,
            flow=flow,
        )

    config = flow_config(task({"mode": mode}), root / "auto")
    chosen = with_layout(config, resume=False).flow.chosen
    layouts = list(dict.fromkeys((*LAYOUTS, chosen)))
    variants: dict[str, Callable[[Path], Any]] = {
        str(layout): partial(run_flow, task(flow_of(layout, mode))) for layout in layouts
    }
    with progress.bar("training", ticks=False):
        runs = alternate(variants, root / f"runs-{mode}", rounds=given.rounds)
    rates = {
        name: statistics.median(run.tokens_per_s for run in of_layout)
        for name, of_layout in runs.items()
    }
    best = max(rates, key=lambda name: rates[name])
    return {
        "load": load,
        "mode": mode,
        "chosen": str(chosen),
        "best": best,
        "regret": 1 - rates[str(chosen)] / rates[best],
        "tokens_per_s": {name: round(rate, 1) for name, rate in rates.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--loads", nargs="+", choices=("demo", *LOADS), default=("demo", *LOADS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--json", action="store_true", help="lines of comparisons go to stderr")
    given = parser.parse_args()
    lines = sys.stderr if given.json else sys.stdout
    rows = []
    for load in given.loads:
        with tempfile.TemporaryDirectory() as folder:
            write_load(Path(folder), load, samples=given.steps * BATCH)
            for mode in given.modes:
                rows.append(compare(Path(folder), load, mode, given))
                print(json.dumps(rows[-1]), file=lines, flush=True)
    print(
        json.dumps(
            {
                "bench": "auto",
                "regret": max(row["regret"] for row in rows),
                "loads": rows,
                "rounds": given.rounds,
                "steps": given.steps,
                "cores": len(os.sched_getaffinity(0)),
                **conditions(),
            }
        )
    )


if __name__ == "__main__":
    main()
