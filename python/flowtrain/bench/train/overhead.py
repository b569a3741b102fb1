"""Cost of the flow: tokens per second of its backbone, and of the same backbone trained alone.

Both run on one core. A second core has the encoder of the run, or the same encoder with rows that
nobody reads, so that both sides share the machine's memory and power with equal work.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from flowtrain import progress
from flowtrain.bench.train.runs import Run, Task, environment, flow_config, flow_figures
from flowtrain.config import dump

MODES: dict[str, dict[str, Any]] = {
    "frozen": {"mode": "frozen"},
    "bounded": {"mode": "bounded", "staleness": 1},
    "strict": {"mode": "strict"},
}
"""Modes in which the cost is measured, as fields of `flow`."""
_MODULES = ("backbone", "encoder")


def flow_overheads(
    task: Task, folder: Path, *, rounds: int, modes: Sequence[str] = tuple(MODES)
) -> dict[str, float]:
    """Share of the tokens/s of the backbone alone that it loses in the flow, by mode.

    Empty if this process may use only one core.

    Args:
        task: The training; its layout and mode are not used.
        folder: Folder for the runs.
        rounds: Alternated runs of each; the result is the median.
        modes: Modes to measure, of MODES.

    Raises:
        RuntimeError: A run failed.
    """
    if len(cores()) < len(_MODULES):
        return {}
    found: dict[str, list[float]] = {f"flow_overhead_{mode}": [] for mode in modes}
    for number, mode in progress.over(
        "overhead of the flow", list(itertools.product(range(rounds), modes))
    ):
        one = replace(task, flow={"encoder_ranks": 1, "backbone_ranks": 1, **MODES[mode]})
        place = folder / f"{mode}-{number}"
        flow = run_pinned(one, place)
        alone = run_alone(one, place, flow)
        found[f"flow_overhead_{mode}"].append(1 - flow.tokens_per_s / alone.tokens_per_s)
    return {name: statistics.median(values) for name, values in found.items()}


def cores() -> list[int]:
    """The cores of the backbone and of the encoder; fewer if this process may use only one."""
    return sorted(os.sched_getaffinity(0))[: len(_MODULES)]


def run_pinned(task: Task, folder: Path) -> Run:
    """Run `flowtrain train` with one rank of each module, each on a core of its own.

    Args:
        task: The training.
        folder: Folder for configuration and run, created if it does not exist.

    Raises:
        RuntimeError: The run failed; the message has the end of its standard error.
    """
    folder.mkdir(parents=True)
    config = flow_config(task, folder / "run")
    path = folder / "config.yaml"
    path.write_text(dump(config))
    launch = [sys.executable, "-m", "flowtrain", "host", str(path)]
    with _Processes(folder, task) as processes:
        launcher = processes.start("launcher", launch)
        for _ in _MODULES:
            words = shlex.split(processes.line(launcher))
            module = words[words.index("--world") + 1] if "--world" in words else "none"
            if module not in _MODULES:
                break  # The launcher has failed, as its end will say.
            # The command without torchrun, whose agent would be one more process.
            rank = [sys.executable, *words[words.index("-m") :]]
            processes.start(module, rank, core=cores()[_MODULES.index(module)])
        processes.wait()
    return flow_figures(config, task)


def run_alone(task: Task, folder: Path, flow: Run) -> Run:
    """Train the backbone alone, and beside it the encoder, on the plans of a pinned run.

    Args:
        task: The training.
        folder: Folder of the pinned run.
        flow: Its figures.

    Raises:
        RuntimeError: A process failed; the message has the end of its standard error.
    """
    with _Processes(folder, task) as processes:
        started = []
        for module, core in zip(_MODULES, cores(), strict=True):
            words = ["-m", "flowtrain.bench.train.alone", str(folder / "run"), "--module", module]
            out = ["--out", str(folder / f"{module}.json")]
            started.append(
                processes.start(f"{module} alone", [sys.executable, *words, *out], core=core)
            )
        for process in started:
            processes.line(process)
        for process in started:
            processes.say(process)
        processes.wait()
    return replace(flow, seconds=json.loads((folder / "backbone.json").read_text()))


class _Processes:
    """Processes that are ended with the block; each has its standard error in a file."""

    def __init__(self, folder: Path, task: Task) -> None:
        self._folder = folder
        self._environment = environment(task) | {"RANK": "0"}
        self._stack = ExitStack()
        self._started: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started.values():
            process.terminate()
        for process in self._started.values():
            with process:  # Closes its pipes and waits for its end.
                pass
        self._stack.close()

    def start(
        self, name: str, words: Sequence[str], *, core: int | None = None
    ) -> subprocess.Popen[str]:
        """Start a process, on one core if it is given; its children are there, too."""
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stack.enter_context(self._errors(name).open("w")),
            env=self._environment,
            text=True,
            preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
        )
        self._started[name] = process
        return process

    @staticmethod
    def line(process: subprocess.Popen[str]) -> str:
        """The next line of a process; empty if it has ended."""
        assert process.stdout is not None
        return process.stdout.readline()

    @staticmethod
    def say(process: subprocess.Popen[str]) -> None:
        """Send a process an empty line."""
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # It has ended; `wait` says why.
            process.stdin.write("\n")
            process.stdin.flush()

    def wait(self) -> None:
        """Wait until all have ended.

        Raises:
            RuntimeError: One failed.
        """
        for name, process in self._started.items():
            assert process.stdout is not None
            process.stdout.read()
            if process.wait() != 0:
                text = self._errors(name).read_text(errors="replace")
                last = "\n".join(text.splitlines()[-15:])
                raise RuntimeError(f"{name}: exit code {process.returncode}:\n{last}")

    def _errors(self, name: str) -> Path:
        return self._folder / f"{name}.log"
