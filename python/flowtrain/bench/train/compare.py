"""Compares variants in alternated rounds, so that a slow phase of the machine reaches all."""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flowtrain import progress
from flowtrain.bench.conditions import conditions
from flowtrain.bench.train.runs import Run, Task, flow_config

# Maximum relative differences of losses of the same steps in float32.
FIRST_LOSS, LAST_LOSS = 1e-6, 1e-4

_LAYOUT = ("layout", "ranks", "encoder_ranks", "backbone_ranks", "mode", "staleness")
_OPTIONS = (
    *("ranks", "workers", "threads", "batch_size", "global_batch", "microbatch_tokens"),
    *("steps", "warmup", "seed", "device", "dtype"),
)


def alternate(
    variants: Mapping[str, Callable[[Path], Run]], folder: Path, *, rounds: int
) -> dict[str, list[Run]]:
    """Run every variant once a round; each round begins with another variant.

    Args:
        variants: Functions that run a variant in a folder of its own, by name.
        folder: Folder for the runs; the files of a run are deleted after it.
        rounds: Rounds, at least 1.
    """
    names = list(variants)
    runs: dict[str, list[Run]] = {name: [] for name in names}
    order = [
        (number, names[(number + turn) % len(names)])
        for number in range(rounds)
        for turn in range(len(names))
    ]
    for done, (number, name) in enumerate(order):
        progress.show(f"round {number + 1}/{rounds}: {name}", done, len(order))
        place = folder / f"{name}-{number}"
        runs[name].append(variants[name](place))
        shutil.rmtree(place)
    return runs


def conditions_of(task: Task) -> dict[str, Any]:
    """Machine, versions, and options of a comparison, for its JSON line."""
    flow = flow_config(task, Path("run")).flow
    return {
        "flow": {name: getattr(flow, name) for name in _LAYOUT},
        **{name: getattr(task, name) for name in _OPTIONS},
        "cores": len(os.sched_getaffinity(0)),
        **{name: version(name) for name in ("torch", "transformers")},
        **conditions(),
    }


def ratio(runs: Sequence[Run], base: Sequence[Run]) -> float:
    """Tokens per second over those of `base`: median over the rounds."""
    pairs = zip(runs, base, strict=True)
    return statistics.median(run.tokens_per_s / other.tokens_per_s for run, other in pairs)


def rates(runs: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    """Tokens per second of every variant by round, and its median start-up."""
    return {
        "tokens_per_s": {name: [round(r.tokens_per_s, 1) for r in of] for name, of in runs.items()},
        "startup_s": {
            name: round(statistics.median(r.startup_s for r in of), 2) for name, of in runs.items()
        },
    }


def idle(runs: Mapping[str, Sequence[Run]]) -> dict[str, float]:
    """Idle time of the packed loop, and the share of it that FlowTrain recovers.

    Args:
        runs: Runs of `flow`, `packed`, and `packed_busy`, the instrumented packed loop.

    Returns:
        `packed_idle`: share of the time of the packed loop that its ranks, in the mean, wait for
        the slowest. `idle_recovered`: (t_packed - t_flow) / (t_packed x packed_idle), with the
        measured times t of both; 1 if FlowTrain is as much faster as the packed loop would be
        without the wait.
    """
    share = statistics.median(run.idle_share for run in runs["packed_busy"])
    saved = statistics.median(
        1 - flow.measured_s / packed.measured_s
        for flow, packed in zip(runs["flow"], runs["packed"], strict=True)
    )
    return {"packed_idle": share, "idle_recovered": saved / share}


def control_overhead(runs: Sequence[Run]) -> float:
    """Share of a rank's time that control takes: median over the runs of the largest of a run."""
    return statistics.median(run.control_share for run in runs)


def loss_differences(flow: Run, plain: Run, name: str) -> dict[str, float]:
    """Relative differences of the losses of the first and of the last step.

    Raises:
        RuntimeError: The runs did not train the same number of tokens in each step.
    """
    if flow.tokens != plain.tokens:
        raise RuntimeError(
            f"flow and {name} trained {flow.tokens} and {plain.tokens} tokens by step: they did "
            "not read the same samples"
        )
    return {
        f"{when}_loss_diff_{name}": abs(flow.losses[at] - plain.losses[at]) / abs(plain.losses[at])
        for when, at in (("first", 0), ("last", -1))
    }


def same_losses(result: Mapping[str, Any]) -> bool:
    """Whether the loss differences in a result are those of rounding.

    They are not compared in half precision, or if the encoder's weights are older by intention.
    """
    if result["dtype"] != "float32" or result["flow"]["mode"] == "bounded":
        return True
    limits = {"first_loss_diff": FIRST_LOSS, "last_loss_diff": LAST_LOSS}
    return all(
        value <= limit
        for name, value in result.items()
        for start, limit in limits.items()
        if name.startswith(start)
    )
