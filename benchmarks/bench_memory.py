"""How many bytes of tensors does a step take, and does the planner know it?

Part `planned` compares the peak of all tensors of a rank in a step with what the planner counts for
the same layout, with each level of recomputation, by chunks of slots, and for each sharding; each
is a run of two steps, of which the second one counts. It exits with 1 if one is off by more than
10 %. Part `orders` compares three orders of the encoder's passes on one rank: those of a whole step
at once, with `flow.recompute`, and by chunks of one slot; its peaks are in excess of the tensors
that live from step to step. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
from memory.planned import planned_bytes
from memory.tensor_peak import FOLDER, Peak, last_peaks
from model_sizes import SIZES
from tqdm import tqdm

from flowtrain.bench.conditions import conditions
from flowtrain.bench.train.synthetic import image_shapes, write_samples
from flowtrain.config.load import from_overrides
from flowtrain.config.schema import RunConfig
from flowtrain.models.registry import family_for
from flowtrain.train.launch.run import train
from flowtrain.train.state.logs import METRICS, read_log
from flowtrain.workloads import Workload

BAR = 0.1
STEPS = 2

# A step of a rank has four slots of two samples each.
SLOTS, SAMPLES_OF_SLOT = 4, 2
TEXT, IMAGE = 256, 128
SAMPLE_TOKENS = TEXT + IMAGE

VOCABULARY = {"42M": 1 << 15, "0.1B": 1 << 15, "0.3B": 1 << 16}

_MIXED = ["model.compute_dtype=bfloat16"]
_CHUNKS = ["flow.chunk_slots=1"]
_FULL = ["parallel.backbone.recompute=full"]
_SELECTIVE = ["parallel.backbone.recompute=selective"]
ROWS: dict[str, list[str]] = {
    "whole step": [],
    "flow.recompute": ["flow.recompute=true"],
    "chunks": _CHUNKS,
    "full": _FULL,
    "selective": _SELECTIVE,
    "full of 3": [*_FULL, "parallel.backbone.recompute_layers=3"],
    "chunks, full, full of 4 in the encoder": [
        *(*_CHUNKS, *_FULL),
        *("parallel.encoder.recompute=full", "parallel.encoder.recompute_layers=4"),
    ],
    "head in chunks": ["train.logit_bytes=4194304"],
    "frozen tower": ["flow.mode=frozen"],
    "mixed precision": _MIXED,
}


def _on_two(sharding: str, overrides: Iterable[str]) -> list[str]:
    modules = ("encoder", "backbone")
    return ["flow.ranks=2", *(f"parallel.{m}.sharding={sharding}" for m in modules), *overrides]


for _sharding in ("replicated", "optimizer", "full"):
    ROWS[f"2 ranks, {_sharding}"] = _on_two(_sharding, [])
ROWS |= {
    "2 ranks, full, full": _on_two("full", _FULL),
    "2 ranks, full, selective, chunks": _on_two("full", [*_CHUNKS, *_SELECTIVE]),
    "2 ranks, optimizer, mixed precision": _on_two("optimizer", _MIXED),
    "2 ranks, full, mixed precision": _on_two("full", _MIXED),
}

ORDERS = {"whole": [], "recompute": ROWS["flow.recompute"], "chunks": _CHUNKS}


def config(folder: Path, name: str, overrides: list[str]) -> RunConfig:
    """A run on the samples and with the model of a folder."""
    tree = {
        "run": str(folder / name),
        "model": {"config": str(folder / "model")},
        "data": {"path": str(folder / "train.jsonl"), "shuffle": False},
        "train": {
            "steps": STEPS,
            "global_batch": SLOTS * SAMPLES_OF_SLOT,
            "microbatch_tokens": SAMPLES_OF_SLOT * SAMPLE_TOKENS,
            "threads": 1,
        },
        "flow": {"ranks": 1},
        "debug": {"fault": "memory.tensor_peak:watch"},
    }
    found = from_overrides(tree, overrides)
    batch = found.train.global_batch * found.flow.chosen.backbone_ranks
    return replace(found, train=replace(found.train, global_batch=batch))


def highest(config: RunConfig) -> Peak:
    """The peak of the rank with the highest, in the last step of a run that ends here."""
    folder = config.run.with_suffix(".peaks")
    folder.mkdir()
    os.environ[FOLDER] = str(folder)
    train(config)
    return max(last_peaks(folder), key=lambda peak: peak.bytes)


def write(folder: Path, samples: int, tokens: tuple[int, int], size: str | None) -> int:
    """Write samples and model; return the number of its parameters."""
    sizes = None if size is None else SIZES[size]
    write_samples(folder, [tokens] * samples, seed=0, max_tokens=sum(tokens), sizes=sizes)
    if size is not None:
        path = folder / "model" / "config.json"
        tree = json.loads(path.read_text())
        tree["text_config"]["vocab_size"] = VOCABULARY[size]
        path.write_text(json.dumps(tree))
    return sum(family_for(folder / "model").parameter_sizes().values())


def compared(folder: Path, size: str, names: Iterable[str], *, silent: bool) -> dict[str, Any]:
    """Peak of each run beside that of the planner."""
    parameters = write(folder, 2 * STEPS * SLOTS * SAMPLES_OF_SLOT, (TEXT, IMAGE), size)
    rows = []
    for number, name in enumerate(tqdm(list(names), disable=silent)):
        run = config(folder, f"run-{number}", ROWS[name])
        peak, targets = highest(run), read_log(run.run / METRICS)[-1]["target_tokens"]
        planned = planned_bytes(
            run,
            equal_samples(run.train.global_batch),
            target_share=targets / (run.train.global_batch * TEXT),
            slots=SLOTS,
        )
        rows.append(
            {
                "row": name,
                "measured_mib": round(peak.bytes / 2**20, 1),
                "planned_mib": round(planned / 2**20, 1),
                "ratio": round(planned / peak.bytes, 3),
                "action": peak.action,
            }
        )
        if not silent:
            print("{row:40} {measured_mib:9} {planned_mib:9} {ratio:6} {action}".format(**rows[-1]))
    return {"parameters": parameters, "rows": rows}


def equal_samples(count: int) -> Workload:
    """Samples of TEXT and IMAGE tokens each."""
    return Workload(
        name="equal",
        tokens=numpy.full(count, SAMPLE_TOKENS),
        visual_tokens=numpy.full(count, IMAGE),
        # Of no use to a planner of memory.
        cost=numpy.ones(count),
        encoder_cost=numpy.ones(count),
        images=numpy.full(count, len(image_shapes(IMAGE))),
    )


def orders(folder: Path) -> dict[str, Any]:
    """Peaks of the orders of the encoder's passes, on 16 slots with a sample each."""
    slots, tokens = 16, (144, 256)
    write(folder, slots * STEPS, tokens, None)
    overrides = [f"train.global_batch={slots}", f"train.microbatch_tokens={sum(tokens)}"]
    peaks, losses = {}, {}
    for name, order in ORDERS.items():
        run = config(folder, name, [*overrides, *order])
        peak = highest(run)
        peaks[name] = (peak.bytes - peak.start) / 2**20
        losses[name] = [line["loss"] for line in read_log(run.run / METRICS)]
    return {
        **{f"{name}_mib": round(peak, 1) for name, peak in peaks.items()},
        "chunks_share": round(peaks["chunks"] / peaks["whole"], 3),
        "recompute_share": round(peaks["recompute"] / peaks["whole"], 3),
        "equal_losses": all(each == losses["whole"] for each in losses.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=("planned", "orders"), default=["planned"])
    parser.add_argument("--size", choices=SIZES, default="42M", help="of the model of `planned`")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    given = parser.parse_args()
    # Ranks import the tracker, too.
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    result: dict[str, Any] = {"bench": "memory"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "planned" in given.parts:
            result |= compared(folder / "planned", given.size, given.rows, silent=given.json)
        if "orders" in given.parts:
            result["orders"] = orders(folder / "orders")
    worst = max((abs(row["ratio"] - 1) for row in result.get("rows", ())), default=0.0)
    print(json.dumps({**result, "worst": round(worst, 3), **conditions()}))
    sys.exit(worst > BAR)


if __name__ == "__main__":
    main()
