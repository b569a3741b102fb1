"""`flowtrain bench train`: FlowTrain and the plain loops on a workload preset."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from flowtrain.bench.train.compare import (
    alternate,
    conditions_of,
    control_overhead,
    idle,
    loss_differences,
    rates,
    ratio,
)
from flowtrain.bench.train.options import task
from flowtrain.bench.train.overhead import flow_overheads
from flowtrain.bench.train.runs import PLAIN, Run, run_flow, run_plain
from flowtrain.bench.train.synthetic import write_workload
from flowtrain.models.tiny import TinyModel

# The encoder takes 0.36 times the FLOPs of the backbone on an image token; in the preset `video`,
# with the cost of released models, it is 0.34 over all tokens.
SIZES = TinyModel(
    vision_width=64, vision_heads=2, text_width=256, text_heads=8, text_intermediate=704
)


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Measure as the options of `flowtrain bench train` say.

    Raises:
        ValueError: An option cannot be used.
        RuntimeError: A run failed, or did not read the samples that the others read.
    """
    with tempfile.TemporaryDirectory(prefix="flowtrain-bench-") as folder:
        root = Path(folder)
        wanted = task(
            given,
            model=root / "data" / "model",
            data=root / "data" / "train.jsonl",
            global_batch=given.global_batch,
            microbatch_tokens=given.microbatch_tokens,
        )
        write_workload(
            root / "data",
            given.preset,
            samples=wanted.steps * wanted.global_batch,
            seed=wanted.seed,
            scale=given.scale,
            max_tokens=wanted.microbatch_tokens,
            sizes=SIZES,
        )
        variants: dict[str, Callable[[Path], Run]] = {
            "flow": partial(run_flow, wanted),
            **{name: partial(run_plain, wanted, name) for name in PLAIN},
            "packed_busy": partial(run_plain, wanted, "packed", busy=True),
        }
        runs = alternate(variants, root / "runs", rounds=given.rounds)
        costs = {}
        if given.device == "cpu":
            costs = flow_overheads(wanted, root / "overhead", rounds=given.rounds)
    differences: dict[str, float] = {}
    for name in ("padded", "packed"):
        differences |= loss_differences(runs["flow"][0], runs[name][0], name)
    return {
        "bench": "train",
        "preset": given.preset,
        "scale": given.scale,
        **{f"vs_{name}": ratio(runs["flow"], runs[name]) for name in PLAIN},
        **idle(runs),
        **costs,
        "control_overhead": control_overhead(runs["flow"]),
        **differences,
        **rates(runs),
        "layout": runs["flow"][0].layout,
        **conditions_of(wanted),
    }
