"""How long does a save keep the ranks from training, at once and in the background?

Trains a model of 45 million parameters on two colocated ranks that divide all states, and saves
after every second step: with the ranks writing, and with `checkpoint.background`. The time of a
save is that of the action `checkpoint`, on the slowest rank; the last save of a run, for which its
end waits, does not count. Both kinds take turns. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
from tqdm import tqdm

from flowtrain.bench.conditions import conditions
from flowtrain.bench.train.runs import Task, flow_config
from flowtrain.bench.train.synthetic import write_samples
from flowtrain.config.checkpoint import CheckpointConfig
from flowtrain.config.parallel import ModuleParallel, ParallelConfig
from flowtrain.events import KINDS, read_run
from flowtrain.models.tiny import TinyModel
from flowtrain.train.launch.run import train

SIZES = TinyModel(
    vision_width=512,
    vision_depth=4,
    vision_heads=8,
    taps=(0, 1),
    text_width=768,
    text_depth=4,
    text_heads=12,
    text_kv_heads=4,
    text_intermediate=2048,
)
STEPS, EVERY = 9, 2
FULL = ModuleParallel(sharding="full")
BAR = 0.2


def saves(folder: Path, *, background: bool, name: str) -> dict[str, Any]:
    """Seconds of each save but the last, and of the whole run."""
    task = Task(
        model=folder / "model",
        data=folder / "train.jsonl",
        steps=STEPS,
        warmup=0,
        global_batch=4,
        microbatch_tokens=400,
        batch_size=4,
        flow={"ranks": 2},
    )
    config = flow_config(task, folder / name)
    config = replace(
        config,
        parallel=ParallelConfig(encoder=FULL, backbone=FULL),
        checkpoint=CheckpointConfig(every=EVERY, keep=1, background=background),
    )
    summary = train(config)
    ranks = [
        [
            (int(event["end_ns"]) - int(event["start_ns"])) / 1e9
            for event in rank.records
            if event["kind"] == KINDS.index("checkpoint")
        ]
        for rank in read_run(config.run)
    ]
    slowest = numpy.array(ranks).max(0)
    return {"saves": slowest[:-1].tolist(), "seconds": summary["train_seconds"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    given = parser.parse_args()
    found: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        write_samples(folder, [(200, 16)] * (4 * STEPS), seed=0, max_tokens=400, sizes=SIZES)
        for number in tqdm(range(given.rounds), disable=given.json):
            for background in (False, True):
                name = f"{'background' if background else 'at-once'}-{number}"
                found[background].append(saves(folder, background=background, name=name))
    # The first save in the background allocates the memory of the copies.
    seconds = {
        background: [second for run in runs for second in run["saves"][1:]]
        for background, runs in found.items()
    }
    at_once, copied = (statistics.median(seconds[kind]) for kind in (False, True))
    result = {
        "bench": "checkpoint",
        "save_s": round(at_once, 4),
        "background_s": round(copied, 4),
        "share": round(copied / at_once, 3),
        "first_background_s": round(statistics.median(run["saves"][0] for run in found[True]), 4),
        "run_s": {
            name: round(statistics.median(run["seconds"] for run in found[kind]), 2)
            for name, kind in (("at_once", False), ("background", True))
        },
        "bar": BAR,
        **conditions(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
