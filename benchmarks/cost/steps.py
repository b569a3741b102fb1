"""Time of whole steps of the demo, as measured tables predict it, and as a run takes.

`flowtrain profile` measures the demo's model. Then `flowtrain train` runs on one rank that holds
both modules. It is unchanged but for its planner, which takes the samples of 12 shapes of steps,
all shapes in each round. All steps are planned before the first, and behind each of them is a step
of a short text: a rank plans and reads ahead in threads of its process, which take Python's lock
from the step that it computes, and they would do so for other shapes than that of the step. The
times are those of the rank's account: forward and backward of encoder and backbone, and the
optimizer; waits for data are not among them.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from cost.planned import STEPS
from flowtrain.config import RunConfig, dump
from flowtrain.config.load import load
from flowtrain.cost.profiled import Profile
from flowtrain.cost.step import step_seconds
from flowtrain.cost.tables import Tables
from flowtrain.data.digits import write_digits
from flowtrain.models.registry import family_for
from flowtrain.plan.host.sampled import rank_rows
from flowtrain.steps import StepPlan
from flowtrain.train.state.logs import PLANS, TIMING, read_log

DOCUMENTS = (1, 2, 3, 5, 8, 12, 20, 32, 44, 56, 72, 90)
"""Documents of each shape of a step."""
KINDS = ("mixed", "long", "text", "images", "short", "mixed")
"""Which samples a shape has, in turn: any, those with the most tokens, those without an image,
those with several, or those with the fewest tokens."""
RANK = ("flow.layout=colocated", "flow.ranks=1", "train.threads=1")
"""One rank with both modules and one thread, as a rank has on a machine with a rank per core."""
WARMUP = 2
"""Rounds that are not counted."""
SETTLED = 0.04
"""Spread above which a time is called not settled."""
WORK = ("encode", "backbone")


def step_rows(
    *, rounds: int, seconds: float, seed: int, profile: Path | None, read_ahead: bool
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Predicted and measured time of each shape, and what the profile took.

    Args:
        rounds: Counted rounds.
        seconds: Time for the profile.
        seed: Of the choice of samples.
        profile: File of a profile to continue from and to keep; None for one that is deleted.
        read_ahead: Have each shape twice in a row in place of a short text behind it, and count the
            first, beside which the rank reads as many images as it encodes.
    """
    with tempfile.TemporaryDirectory(prefix="flowtrain-steps-") as place:
        folder = Path(place)
        write_digits(folder / "data", train=4000, heldout=1, text_only=0.15, multi_image=0.2)
        demo = folder / "demo.yaml"
        demo.write_text(files("flowtrain").joinpath("configs", "demo.yaml").read_text())
        out = profile or folder / "profile.json"
        made = flowtrain(
            ["profile", str(demo), *RANK, "--out", str(out), "--seconds", str(seconds), "--json"]
        )
        config = load(demo, RANK)
        chosen, short_text = shapes(folder / "data" / "train.jsonl", seed)
        measured = run_steps(
            config, folder, chosen, [short_text], rounds=rounds, seed=seed, read_ahead=read_ahead
        )
        return compared(config, out, *measured, rounds=rounds), json.loads(made)


def shapes(data: Path, seed: int) -> tuple[list[list[int]], int]:
    """Samples of each shape, and the one of the shortest text."""
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    answers = [len(line["messages"][-1]["content"]) for line in lines]
    images = [len(line["images"]) for line in lines]
    order = sorted(range(len(lines)), key=lambda i: answers[i])
    eighth = len(lines) // 8
    pools = {
        "mixed": order,
        "short": order[: 2 * eighth],
        "long": order[-eighth:],
        "text": [i for i in order if not images[i]],
        "images": [i for i in order if images[i] > 1],
    }
    generator = random.Random(seed)
    chosen = [
        generator.sample(pools[KINDS[number % len(KINDS)]], count)
        for number, count in enumerate(DOCUMENTS)
    ]
    return chosen, pools["text"][0]


def run_steps(
    config: RunConfig,
    folder: Path,
    chosen: Sequence[Sequence[int]],
    between: Sequence[int],
    *,
    rounds: int,
    seed: int,
    read_ahead: bool,
) -> tuple[list[StepPlan], list[dict[str, Any]], list[int]]:
    """Train on the shapes in interleaved rounds.

    Returns:
        Plan, times and number of the shape of each step.
    """
    generator = random.Random(seed)
    order: list[int] = []
    for _ in range(WARMUP + rounds):
        for number in generator.sample(range(len(chosen)), len(chosen)):
            order += [number, number if read_ahead else len(chosen)]
    steps = folder / "steps.json"
    steps.write_text(json.dumps([[*chosen, between][number] for number in order]))
    run = folder / "run"
    path = folder / "run.yaml"
    path.write_text(dump(config))
    flowtrain(
        [
            *("train", str(path), f"run={run}", f"train.steps={len(order)}"),
            # All are planned before the first step: else the planner's thread would take Python's
            # lock from a step to plan another one.
            *(f"flow.plan_ahead={len(order)}", "debug.fault=cost.planned:install"),
        ],
        {STEPS: str(steps)},
    )
    plans = [StepPlan.from_json(line) for line in (run / PLANS).read_text().splitlines()]
    return plans, read_log(run / TIMING), order


def flowtrain(words: Sequence[str], environment: dict[str, str] | None = None) -> str:
    """Standard output of a command of FlowTrain."""
    here = Path(__file__).resolve().parents[1]
    paths = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "flowtrain", *words],
        env={**os.environ, "PYTHONPATH": paths, **(environment or {})},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"flowtrain {' '.join(words)}: exit code {done.returncode}")
    return done.stdout


def compared(
    config: RunConfig,
    profile: Path,
    plans: Sequence[StepPlan],
    times: Sequence[dict[str, Any]],
    order: Sequence[int],
    *,
    rounds: int,
) -> list[dict[str, Any]]:
    """One row for each shape."""
    family = family_for(config.model.folder, projector_side=config.projector_side)
    tables = Tables(Profile.load(profile), family.layers)
    found = []
    for shape, count in enumerate(DOCUMENTS):
        counted = range(0, len(order), 2)
        steps = [step for step in counted if order[step] == shape][-rounds:]
        plan = plans[steps[0]]
        rows = rank_rows(
            plan,
            ("encoder", "backbone"),
            0,
            lambda grid: family.counts(0, [grid], num_targets=0),
        )
        predicted = step_seconds(tables, family.layers, rows, config.trained_parts)
        taken = [measured(times, step) for step in steps]
        totals = [sum(parts.values()) for parts in taken]
        median = statistics.median(totals)
        halves = [statistics.median(totals[start::2]) for start in (0, 1)]
        found.append(
            {
                "documents": count,
                "kind": KINDS[shape % len(KINDS)],
                "microbatches": sum(bool(row.documents) for row in rows),
                "tokens": sum(sum(row.documents) for row in rows),
                "image_rows": sum(row.image_rows for row in rows),
                "measured_ms": median * 1e3,
                "predicted_ms": predicted.total * 1e3,
                "error": predicted.total / median - 1,
                "spread": abs(halves[0] - halves[1]) / median,
                "parts_ms": {
                    name: [
                        statistics.median(parts[name] for parts in taken) * 1e3,
                        getattr(predicted, name) * 1e3,
                    ]
                    for name in taken[0]
                },
                "wall_ms": statistics.median(times[step]["seconds"] for step in steps) * 1e3,
            }
        )
    return found


def measured(times: Sequence[dict[str, Any]], step: int) -> dict[str, float]:
    """Seconds of a step; those of its optimizer are reported with the next step."""
    seconds = times[step]["activity_s"]["colocated"]
    following = times[step + 1]["activity_s"]["colocated"]
    parts = {name: seconds.get(name, 0.0) for name in WORK}
    return {**parts, "update": following.get("optimizer", 0.0)}


def step_summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and worst error, and which shapes are not settled."""
    errors = [abs(row["error"]) for row in rows]
    return {
        "step_error_mean": statistics.mean(errors),
        "step_error_worst": max(errors),
        "step_not_settled": [row["documents"] for row in rows if row["spread"] > SETTLED],
    }


def step_line(row: dict[str, Any]) -> str:
    settled = "" if row["spread"] <= SETTLED else f"  not settled, spread {row['spread']:.1%}"
    parts = "  ".join(f"{name} {a:.1f} {b:.1f}" for name, (a, b) in row["parts_ms"].items())
    return (
        f"{row['documents']:3} documents, {row['kind']:6} {row['tokens']:5} tokens, "
        f"{row['image_rows']:4} image rows  measured {row['measured_ms']:7.1f} ms  "
        f"predicted {row['predicted_ms']:7.1f}  error {row['error']:+6.1%}{settled}  ({parts})"
    )
