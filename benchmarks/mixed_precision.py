"""Does bfloat16 training keep float32 master weights, as FSDP2's own policy does?

Trains a tiny model in bfloat16 with FlowTrain, and with `reference_loop.py` under FSDP2's mixed
precision, over the same samples. Losses do not show whether master weights are float32, so that
weights are compared: the norm of their difference, divided by the norm of their change. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import reference_loop
import torch
from parity import BATCH, CLIP, OPTIONS, SEED, run_config
from parity_matrix import Row
from transformers import AutoModelForImageTextToText

from flowtrain.config.parallel import Sharding
from flowtrain.data.digits import write_digits
from flowtrain.models.tiny import SMALLEST
from flowtrain.train.launch.local import run_local_ranks
from flowtrain.train.launch.run import train
from flowtrain.train.state.logs import read_log

LIMIT = 0.05


def compare(
    folder: Path,
    *,
    steps: int,
    sharding: str,
    masters: bool = True,
    run_ranks: Callable[..., None] = run_local_ranks,
) -> dict[str, Any]:
    row = Row(
        dtype="float32" if masters else "bfloat16",
        optimizer="adamw",
        ranks=2,
        encoder=sharding,
        backbone=sharding,
    ).arguments(steps=steps)
    write_digits(
        folder / "data",
        train=BATCH["colocated"] * steps,
        heldout=1,
        seed=SEED,
        text_only=0.2,
        multi_image=0.2,
        sizes=SMALLEST,
    )
    config = run_config(folder, row)
    config = replace(config, model=replace(config.model, compute_dtype="bfloat16"))
    train(config, run_ranks=run_ranks)
    log, net = reference_loop.run(
        model=config.model.folder,
        from_seed=SEED,
        data=folder / "data" / "train.jsonl",
        steps=config.run / "metrics.jsonl",
        dtype="bfloat16",
        optimizer="adamw",
        options=OPTIONS["adamw"],
        clip_norm=CLIP,
        freeze=(),
        sharded=True,
    )
    final = AutoModelForImageTextToText.from_pretrained(config.run / "final", dtype=torch.float32)
    ours = final.state_dict()
    torch.manual_seed(SEED)
    start = AutoModelForImageTextToText.from_config(net.config, dtype=torch.float32).state_dict()
    apart = moved = size = 0.0
    for name, theirs in net.state_dict().items():
        before = start[name].double()
        apart += float((ours[name].double() - theirs.double()).square().sum())
        moved += float((theirs.double() - before).square().sum())
        size += float(before.square().sum())
    losses = [
        abs(mine["loss"] - theirs["loss"]) / theirs["loss"]
        for mine, theirs in zip(read_log(config.run / "metrics.jsonl"), log, strict=True)
    ]
    return {
        "weights_of_change": (apart / moved) ** 0.5,
        "weight_change": (moved / size) ** 0.5,
        "max_rel_loss_diff": max(losses),
        "sharding": sharding,
        "masters": masters,
        "steps": steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--json", action="store_true", help="the JSON line alone")
    given = parser.parse_args()
    rows = []
    for sharding in get_args(Sharding):
        for masters in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                row = compare(Path(folder), steps=given.steps, sharding=sharding, masters=masters)
            rows.append(row)
            if not given.json:
                held = "float32" if masters else "bfloat16"
                print(
                    f"{sharding:>10}, {held} masters: weights differ by "
                    f"{row['weights_of_change']:.3f} of their change, losses by "
                    f"{row['max_rel_loss_diff']:.1e}",
                    flush=True,
                )
    worst = max(row["weights_of_change"] for row in rows if row["masters"])
    print(json.dumps({"bench": "mixed_precision", "worst": worst, "limit": LIMIT, "rows": rows}))


if __name__ == "__main__":
    main()
