"""Does the size of the pool, or the timing of the ranks, change a number or stop a run?

Trains the demo's model on the demo's data, with several ranks of each world and random delays on
every rank, in pools from the size of the largest plan up to four times that, and compares the
losses of every step with those of a large pool without delays. A pool of one byte less than the
minimum must be refused, with the number of missing bytes. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

from flowtrain.config import RunConfig
from flowtrain.data.digits import write_digits
from flowtrain.models.dtypes import DTYPES
from flowtrain.models.registry import family_for
from flowtrain.steps import Space
from flowtrain.train.assembly.offline import planned_steps
from flowtrain.train.demo import demo_config
from flowtrain.train.launch.errors import RunFailed
from flowtrain.train.launch.run import train
from flowtrain.train.state.logs import read_log

SCALES = (1, 2, 4)


def configure(folder: Path, name: str, given: argparse.Namespace, **fields: Any) -> RunConfig:
    common = {
        "run": folder / name,
        "train.steps": given.steps,
        "train.threads": 1,
        "flow.encoder_ranks": given.encoder_ranks,
        "flow.backbone_ranks": given.backbone_ranks,
        "flow.item_tokens": 256,
        "debug.delay_ms": given.delay_ms,
    }
    return demo_config(folder, [f"{key}={value}" for key, value in {**common, **fields}.items()])


def min_pool_bytes(config: RunConfig) -> int:
    """Size of the largest plan of a run, by planning all of its steps."""
    family = family_for(config.model.folder, projector_side=config.projector_side)
    space = Space(
        slab_bytes=config.pool.slab_bytes,
        row_bytes=family.row_width * DTYPES[config.pool.dtype or config.model.pass_dtype].itemsize,
        trained=config.flow.mode != "frozen",
    )

    flow = config.flow
    return max(
        space.total_bytes(
            space.need(plan),
            encoder_ranks=flow.encoder_ranks,
            backbone_ranks=flow.backbone_ranks,
        )
        for plan in planned_steps(config, config.train.steps)
    )


def losses(config: RunConfig) -> list[float]:
    train(config)
    return [step["loss"] for step in read_log(config.run / "metrics.jsonl")]


def measure(folder: Path, mode: str, given: argparse.Namespace, bar: Any) -> dict[str, Any]:
    """Compare the losses of one mode in every pool with those of a large pool."""
    shape = {"flow.mode": mode}
    large = configure(
        folder, f"{mode}-large", given, **shape, **{"pool.scale": 8, "debug.delay_ms": 0}
    )
    least = min_pool_bytes(large)
    expected = losses(large)
    bar.update()
    pools = {"least": {"pool.bytes": least}} | {f"{x}x": {"pool.scale": x} for x in SCALES}
    same, seconds = {}, {}
    for name, fields in pools.items():
        started = time.perf_counter()
        config = configure(folder, f"{mode}-{name}", given, **shape, **fields)
        same[name] = losses(config) == expected
        seconds[name] = round(time.perf_counter() - started, 1)
        bar.update()
    short = configure(folder, f"{mode}-short", given, **shape, **{"pool.bytes": least - 1})
    return {
        "least_bytes": least,
        "same_losses": same,
        "seconds": seconds,
        "below_least": refusal(short),
        "last_loss": expected[-1],
    }


def refusal(config: RunConfig) -> str:
    """Error message of a run whose pool is too small."""
    try:
        train(config)
    except RunFailed as error:
        return next((part for part in str(error).split(": ", 1) if "missing" in part), "")
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--encoder-ranks", type=int, default=2)
    parser.add_argument("--backbone-ranks", type=int, default=2)
    parser.add_argument("--delay-ms", type=float, default=20.0, help="maximum random delay")
    parser.add_argument("--modes", nargs="+", default=["frozen", "strict"])
    parser.add_argument("--json", action="store_true", help="no table before the JSON line")
    given = parser.parse_args()
    runs = len(given.modes) * (2 + len(SCALES))
    with (
        tempfile.TemporaryDirectory() as folder,
        tqdm(total=runs, unit="run", disable=given.json) as bar,
    ):
        root = Path(folder)
        config = configure(root, "data", given)
        write_digits(config.data.path.parent, seed=config.train.seed)
        result = {mode: measure(root, mode, given, bar) for mode in given.modes}
    print(json.dumps({"steps": given.steps, "delay_ms": given.delay_ms, **result}))
    held = all(
        all(r["same_losses"].values()) and "missing" in r["below_least"] for r in result.values()
    )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
