"""The logs of a run as columns: one number for each step."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from flowtrain.observe.report.groups import group_of
from flowtrain.train.state.logs import EVALUATIONS, METRICS, TIMING, lines_of, no_line

Column = NDArray[numpy.float64]
Columns = Mapping[str, Column]
"""Columns of equal length, by name; nan where a line has no value. `step` is the number of the
step, from 0."""


def read_metrics(run: Path) -> Columns:
    """Losses, rates, counts of samples and packing of each step, from `metrics.jsonl`.

    Raises:
        RunFileError: A line cannot be read.
    """
    return _columns(run / METRICS, _of_metrics)


def read_timing(run: Path) -> Columns:
    """Speed, memory and pool of each step, and seconds by `WORLD/GROUP`, from `timing.jsonl`.

    Figures of a module are `MODULE NAME`, and the peak memory of a rank is `memory RANK`.

    Raises:
        RunFileError: A line cannot be read.
    """
    return _columns(run / TIMING, _of_timing)


def read_evaluations(run: Path) -> Columns:
    """Loss of each evaluation, from `eval.jsonl`.

    Raises:
        RunFileError: A line cannot be read.
    """
    return _columns(run / EVALUATIONS, lambda line: {key: line[key] for key in ("step", "loss")})


def _columns(path: Path, pick: Callable[[dict[str, Any]], Mapping[str, Any]]) -> Columns:
    # Arrays, as the objects of a long run would need gigabytes.
    found: dict[str, array[float]] = {"step": array("d")}
    count = 0
    for count, line in enumerate(lines_of(path, growing=True), 1):
        try:
            for name, value in pick(line).items():
                column = found.get(name)
                if column is None:
                    column = found[name] = array("d")
                if len(column) < count - 1:
                    _fill(column, count - 1)
                column.append(math.nan if value is None else value)
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise no_line(path, count, repr(error)) from error
    for column in found.values():
        _fill(column, count)
    return {name: numpy.frombuffer(column) for name, column in found.items() if column} or {
        "step": numpy.empty(0)
    }


def _fill(column: array[float], size: int) -> None:
    column.extend([math.nan] * (size - len(column)))


def _of_metrics(line: dict[str, Any]) -> dict[str, Any]:
    found = {
        name: line[name]
        for name in ("step", "loss", "target_tokens", "skipped_samples", "dropped_samples")
    }
    found |= {"truncated_samples": line["truncated_samples"], "lr": line["lr"]}
    found["skipped_step"] = float(line["action"] != "apply")
    found["age"] = max(line["weight_ages"], default=0)
    norms = {f"norm of the {world}": of["norm"] for world, of in line.get("grad_norms", {}).items()}
    found |= norms or {"norm": line["grad_norm"]}
    if (packing := line["packing"]) is not None:
        found["gap"] = packing["gap"]
        for when in ("packed", "arrival"):
            found |= {f"{when} {name}": ratio for name, ratio in packing[when].items()}
    return found


def _of_timing(line: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: line[name]
        for name in ("step", "seconds", "tokens", "tokens_per_s", "mfu", "peak_flops")
    }
    for name in ("pool_in_use_bytes", "pool_bytes", "bytes_through_pool"):
        found[name] = line[name]
    found |= {name: line[name] for name in ("cache_hits", "cache_misses") if name in line}
    for module, figures in line.get("modules", {}).items():
        found |= {f"{module} {name}": value for name, value in figures.items()}
    for rank, size in line.get("memory_bytes", {}).items():
        found[f"memory {rank}"] = size
    for world, seconds in line["activity_s"].items():
        for activity, spent in seconds.items():
            key = f"{world}/{group_of(activity)}"
            found[key] = found.get(key, 0.0) + spent
    return found
