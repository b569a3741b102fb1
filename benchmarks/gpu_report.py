"""Conditions and page format of a report of `gpu_facts.py`."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

import flowtrain_core
from flowtrain_core import cuda

Rows = list[dict[str, Any]]


def conditions() -> dict[str, Any]:
    """Machine, load and versions, before the first measurement."""
    root = Path(__file__).resolve().parents[1]
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True
    )
    version = Path("/proc/driver/nvidia/version")
    return {
        "gpu": [device.name for device in cuda.devices()],
        "why_not": cuda.why_not(),
        "driver": version.read_text().splitlines()[0] if version.exists() else "unknown",
        "cuda_of_driver": "{}.{}".format(*cuda.driver_version()),
        "torch": torch.__version__,
        "commit": git.stdout.strip() or "unknown",
        "flowtrain_core": flowtrain_core.__version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
        "taken": time.strftime("%Y-%m-%d"),
    }


def page(given: dict[str, Any], facts: dict[str, Rows | str], texts: dict[str, str]) -> str:
    """Page with the conditions, then the table or the error of each fact."""
    command = "`python benchmarks/gpu_facts.py --json --report PATH`"
    lines = ["# The pool on a GPU", "", f"Reproduce: {command}", ""]
    lines += [f"- {key}: {value}" for key, value in given.items()]
    for name, rows in facts.items():
        lines += ["", f"## {name}", "", texts[name], ""]
        if isinstance(rows, str):
            lines.append(f"Failed: `{rows}`")
            continue
        keys = list(rows[0])
        lines.append(f"| {' | '.join(keys)} |")
        lines.append(f"|{' --- |' * len(keys)}")
        lines += [f"| {' | '.join(str(row[key]) for key in keys)} |" for row in rows]
    return "\n".join(lines) + "\n"
