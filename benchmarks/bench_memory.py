"""How many bytes of tensors does a step take, in each order of its encoder's passes?

Trains a few steps on one rank that holds both modules: the encoder's passes of a whole step at
once, with `flow.recompute`, and by chunks of one slot. Each step has 16 slots of images. The peak
is that of all tensors of the rank, in excess of those that live from step to step: weights,
gradients and optimizer states. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensor_peak
from tqdm import tqdm

from flowtrain.bench.conditions import conditions
from flowtrain.bench.train.runs import Task, flow_config
from flowtrain.bench.train.synthetic import write_samples
from flowtrain.train.launch.run import train
from flowtrain.train.state.logs import read_log

ORDERS: dict[str, dict[str, Any]] = {
    "whole": {},
    "recompute": {"recompute": True},
    "chunks": {"chunk_slots": 1},
}
SLOTS = 16
# A slot has room for one sample.
SAMPLE_TOKENS = 400


def peak(folder: Path, flow: dict[str, Any], steps: int) -> dict[str, Any]:
    """Bytes of a step's tensors at their peak, the most of all steps but the first."""
    task = Task(
        model=folder / "model",
        data=folder / "train.jsonl",
        steps=steps,
        warmup=0,
        global_batch=SLOTS,
        microbatch_tokens=SAMPLE_TOKENS,
        batch_size=SLOTS,
        flow={"ranks": 1, **flow},
    )
    config = flow_config(task, folder / "-".join(["run", *flow]))
    config = replace(config, debug=replace(config.debug, fault="tensor_peak:watch"))
    found = folder / "peak.json"
    os.environ[tensor_peak.FILE] = str(found)
    train(config)
    seen = json.loads(found.read_text())[1:]
    plans = read_log(config.run / "plan.log")
    return {
        "peak_bytes": max(most - start for start, most in seen),
        "slots": min(plan["slots"] for plan in plans),
        "losses": [line["loss"] for line in read_log(config.run / "metrics.jsonl")],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    given = parser.parse_args()
    # Ranks import the hook, too.
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = [(64, 256)] * (SLOTS * given.steps)
        write_samples(folder, tokens, seed=0, max_tokens=SAMPLE_TOKENS)
        found = {
            order: peak(folder, flow, given.steps)
            for order, flow in tqdm(ORDERS.items(), disable=given.json)
        }
    whole = found["whole"]
    result = {
        "bench": "memory",
        **{f"{order}_mib": round(of["peak_bytes"] / 2**20, 1) for order, of in found.items()},
        "chunks_share": round(found["chunks"]["peak_bytes"] / whole["peak_bytes"], 3),
        "recompute_share": round(found["recompute"]["peak_bytes"] / whole["peak_bytes"], 3),
        "equal_losses": all(of["losses"] == whole["losses"] for of in found.values()),
        "slots": min(of["slots"] for of in found.values()),
        **conditions(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
