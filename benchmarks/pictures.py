"""Draws the pictures of the README, `docs/pictures/*.svg`.

`timeline.svg`: two steps of two small runs, colocated and decoupled, on the demo's data and model,
from their events. `packing.svg`: a step of 128 samples with the sizes of four document sets, in
arrival order and packed. Runs alternate in rounds, and of each layout the one whose median step is
the shortest is drawn: others were disturbed more. They take minutes on two cores; `--runs` keeps
them, for a look at `flowtrain report`. The last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import vl_convert
from drawn.packed import packings
from drawn.style import WIDTH
from drawn.timeline import Panel, timelines

import flowtrain
from flowtrain.data.digits import write_digits
from flowtrain.observe.report.columns import read_timing
from flowtrain.packing.compare import compare, steps_of
from flowtrain.workloads import preset

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
_DEMO = Path(flowtrain.__file__).parent / "configs" / "demo.yaml"
_RANKS, _MAX_TOKENS, _STEP = 8, 6000, 128
_FLOWS = {
    "colocated": ["flow.ranks=2"],
    "decoupled": ["flow.encoder_ranks=1", "flow.backbone_ranks=1"],
}


def train(folder: Path, *, steps: int, rounds: int) -> dict[str, Path]:
    """Train both layouts for some steps, in rounds; runs that are there are kept.

    Returns:
        The folder of the least disturbed run, by layout.
    """
    data = folder / "data"
    if not data.exists():
        write_digits(data, train=2000, heldout=8)
    for number, (name, flow) in itertools.product(range(rounds), _FLOWS.items()):
        run = folder / f"{name}-{number}"
        if run.exists():
            continue
        given = [
            f"run={run}",
            f"model.config={data / 'model'}",
            f"data.path={data / 'train.jsonl'}",
            f"train.steps={steps}",
            "train.microbatch_tokens=512",
            "train.threads=1",
        ]
        command = [sys.executable, "-m", "flowtrain", "train", str(_DEMO), *given, *flow]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    runs = {name: [folder / f"{name}-{number}" for number in range(rounds)] for name in _FLOWS}
    return {name: min(found, key=_median_s) for name, found in runs.items()}


def _median_s(run: Path) -> float:
    return float(numpy.median(read_timing(run)["seconds"]))


def timeline_of(runs: Mapping[str, Path]) -> dict[str, Any]:
    """A run of each layout as a specification."""
    return timelines(
        [
            Panel(
                "Colocated, both ranks hold both modules",
                runs["colocated"],
                {"colocated.0": "rank 0", "colocated.1": "rank 1"},
            ),
            Panel(
                "Decoupled, embeddings go through the pool, and gradients back",
                runs["decoupled"],
                {"encoder.0": "encoder", "backbone.0": "backbone"},
            ),
        ]
    )


def packing_of() -> dict[str, Any]:
    """A step in arrival order and packed."""
    work = preset("documents", _STEP, seed=0)
    steps, slots = steps_of(
        work, ranks=_RANKS, max_tokens=_MAX_TOKENS, microbatches=None, step_samples=None
    )
    found = {
        row.policy: row
        for row in compare(
            work,
            steps,
            ranks=_RANKS,
            microbatches=slots,
            max_tokens=_MAX_TOKENS,
            policies=["arrival", "flowtrain-best"],
        )
    }
    of = f"{_STEP} samples of four document sets on {_RANKS} ranks"
    return packings(found["arrival"], found["flowtrain-best"], of=of)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, help="folder in which runs are kept, and read again")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each layout")
    parser.add_argument("--steps", type=int, default=12, help="steps of a run")
    parser.add_argument("--out", type=Path, default=PICTURES, help="folder of the pictures")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = train(given.runs or Path(folder), steps=given.steps, rounds=given.rounds)
        specs = {"timeline": timeline_of(runs), "packing": packing_of()}
    given.out.mkdir(parents=True, exist_ok=True)
    sizes = {}
    for name, spec in specs.items():
        text = vl_convert.vegalite_to_svg(json.dumps(spec))
        given.out.joinpath(f"{name}.svg").write_text(text)
        sizes[name] = len(text)
    print(json.dumps({"width": WIDTH, "bytes": sizes}))


if __name__ == "__main__":
    main()
