"""One run of a variant: the plain loop under torchrun, or `flowtrain train`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowtrain.config import RunConfig, dump, from_dict
from flowtrain.config.load import load
from flowtrain.events import Account, read_accounts
from flowtrain.train.state.logs import METRICS, TIMING, read_log

PLAIN = ("padded", "grouped", "packed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """The training that every variant does, in the same number of steps of the same samples."""

    model: Path
    """Hugging Face folder."""
    data: Path
    """JSONL file; step s has the samples [s x global_batch, (s + 1) x global_batch)."""
    steps: int
    warmup: int
    """Steps at the start that are not measured."""
    global_batch: int
    microbatch_tokens: int
    """Maximum tokens of a packed row, in the plain loop and in FlowTrain."""
    batch_size: int
    """Samples of a padded microbatch."""
    seed: int = 0
    loads: bool = False
    """Whether weights are loaded from the folder of the model, and not drawn from the seed."""
    ranks: int = 2
    """Ranks of the plain loop."""
    workers: int = 1
    """Processes that read for each rank, in all variants."""
    threads: int = 1
    """Torch threads of each rank, in all variants."""
    device: str = "cpu"
    dtype: str = "float32"
    optim: dict[str, Any] = field(
        default_factory=lambda: {"lr": 1e-3, "betas": [0.9, 0.999], "clip_norm": 1.0}
    )
    flow: dict[str, Any] = field(default_factory=dict)
    """Section `flow` of the configuration of `flowtrain train`: its layout and mode."""
    parallel: dict[str, Any] = field(default_factory=dict)
    """Its section `parallel`."""
    compile: bool = False
    """Its `model.compile`; the plain loop compiles nothing."""

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < self.steps:
            raise ValueError(
                f"warmup={self.warmup}: it must be at least 0 and less than steps={self.steps}"
            )

    @property
    def frozen(self) -> bool:
        """Whether encoder and projector do not train."""
        return self.flow.get("mode") == "frozen"


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Figures of one run; lists have a value for each step, the warm-up included.

    Attributes:
        warmup: Steps at the start that are not measured.
        tokens: Tokens of the samples, without padding.
        seconds: Time of each step, its wait for data included.
        losses: Mean over the target tokens of the step.
        startup_s: From the start of the launcher's process to the start of the first step.
        busy_s: Of an instrumented run, each rank's time up to the reduction of its gradients,
            by step.
        layout: Layout of a run of `flowtrain train`.
        control_share: `control_share` of its rank with the largest one.
    """

    warmup: int
    tokens: list[int]
    seconds: list[float]
    losses: list[float]
    startup_s: float
    busy_s: list[list[float]] = field(default_factory=list)
    layout: str | None = None
    control_share: float = 0.0

    @property
    def measured_s(self) -> float:
        return sum(self.seconds[self.warmup :])

    @property
    def tokens_per_s(self) -> float:
        return sum(self.tokens[self.warmup :]) / self.measured_s

    @property
    def idle_share(self) -> float:
        """Share of the measured time that the ranks, in the mean, wait for the slowest one."""
        steps = self.busy_s[self.warmup :]
        waited = sum(max(ranks) - sum(ranks) / len(ranks) for ranks in steps)
        return waited / self.measured_s


def run_plain(
    task: Task, variant: str, folder: Path, *, in_memory: bool = False, busy: bool = False
) -> Run:
    """Run `plain_loop.py` under torchrun.

    Args:
        task: The training.
        variant: One of PLAIN.
        folder: Folder for its results, created if it does not exist.
        in_memory: Read and process all samples before the first step.
        busy: Measure busy times; the reduction of the gradients then overlaps with nothing.

    Raises:
        RuntimeError: The run failed; the message has the end of its standard error.
    """
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / "figures.json"
    optim = task.optim
    clip = optim.get("clip_norm", 1.0)
    command = [
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(task.ranks)),
        *("-m", "flowtrain.bench.train.plain_loop", "--variant", variant, "--out", str(out)),
        *("--model", str(task.model), "--seed", str(task.seed)),
        *([] if task.loads else ["--seed-weights"]),
        *("--data", str(task.data), "--steps", str(task.steps), "--warmup", str(task.warmup)),
        *("--global-batch", str(task.global_batch), "--batch-size", str(task.batch_size)),
        *("--microbatch-tokens", str(task.microbatch_tokens), "--workers", str(task.workers)),
        *("--threads", str(task.threads), "--device", task.device, "--dtype", task.dtype),
        *("--lr", str(optim["lr"]), "--betas", *map(str, optim["betas"])),
        *(["--clip-norm", str(clip)] if clip is not None else []),
        *(["--freeze-encoder"] if task.frozen else []),
        *(["--in-memory"] if in_memory else []),
        *(["--busy"] if busy else []),
    ]
    started = time.time()
    _python(command, folder, task)
    found = json.loads(out.read_text())
    return Run(
        warmup=task.warmup,
        tokens=found["tokens"],
        seconds=found["seconds"],
        losses=found["losses"],
        startup_s=found["start_time"] - started,
        busy_s=found["busy"],
    )


def flow_config(task: Task, run: Path) -> RunConfig:
    """Configuration of `flowtrain train` for a task.

    Raises:
        ConfigError: A field of `Task.flow` is unknown or cannot be used.
    """
    return from_dict(
        {
            "run": str(run),
            "model": {
                "path" if task.loads else "config": str(task.model),
                "dtype": task.dtype,
                "compute_dtype": task.dtype,  # The plain loop has no master weights.
                "device": task.device,
                "compile": task.compile,
                # As the plain loop, which freezes all that encodes images.
                "freeze": ["projector"] if task.frozen else [],
            },
            "data": {"path": str(task.data), "shuffle": False, "workers": task.workers},
            "train": {
                "steps": task.steps,
                "global_batch": task.global_batch,
                "microbatch_tokens": task.microbatch_tokens,
                "seed": task.seed,
                "threads": task.threads,
            },
            "optim": task.optim,
            "flow": task.flow,
            "parallel": task.parallel,
            "pool": {"slab_bytes": 1 << 16},
        },
        source="--flow",
    )


def run_flow(task: Task, folder: Path) -> Run:
    """Run `flowtrain train`.

    Args:
        task: The training.
        folder: Folder for configuration and run, created if it does not exist. It must not
            have a run.

    Raises:
        RuntimeError: The run failed; the message has the end of its standard error.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = flow_config(task, folder / "run")
    path = folder / "config.yaml"
    path.write_text(dump(config))
    started = time.time()
    _python(["-m", "flowtrain", "train", str(path)], folder, task)
    return flow_figures(config, task, started=started)


def flow_figures(config: RunConfig, task: Task, *, started: float | None = None) -> Run:
    """Figures of a finished run of `flowtrain train`.

    Args:
        config: Its configuration.
        task: The training.
        started: When its launcher was started, as `time.time` counts; None if start-up is not
            measured.
    """
    times = read_log(config.run / TIMING)
    seconds = [step["seconds"] for step in times]
    # The last line is written at the update of the last step.
    ended = (config.run / TIMING).stat().st_mtime
    return Run(
        warmup=task.warmup,
        tokens=[step["tokens"] for step in times],
        seconds=seconds,
        losses=[step["loss"] for step in read_log(config.run / METRICS)],
        startup_s=ended - sum(seconds) - started if started is not None else 0.0,
        layout=str(load(config.run / "config.yaml").flow.chosen),
        control_share=max(map(control_share, read_accounts(config.run).values())),
    )


_CONTROL = ("plan", "exchange", "log", "send", "receive")


def control_share(account: Account) -> float:
    """Share of a rank's time in which it plans, logs, or uses the job's store or the pool.

    Time on a core, of its main thread and of the planner, without waits; the copies of records
    through the pool are included.
    """
    spent = sum(account.cpu_seconds[kind] for kind in _CONTROL)
    return (spent + account.planner_cpu_seconds) / sum(account.seconds.values())


def environment(task: Task) -> dict[str, str]:
    """Environment of the processes of a run."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(task.threads),
        # The DataLoader forks, and the tokenizer would warn of it.
        "TOKENIZERS_PARALLELISM": "false",
    }


def _python(words: Sequence[str], folder: Path, task: Task) -> None:
    """Run Python with output to files of a folder, and with its ranks ended if interrupted."""
    errors = folder / "stderr.log"
    with (folder / "stdout.log").open("w") as out, errors.open("w") as err:
        launcher = subprocess.Popen(
            [sys.executable, *words], stdout=out, stderr=err, env=environment(task)
        )
        try:
            code = launcher.wait()
        except BaseException:
            # A launcher that is killed would leave its ranks; on SIGTERM it ends them.
            launcher.terminate()
            launcher.wait()
            raise
    if code != 0:
        last = "\n".join(errors.read_text(errors="replace").splitlines()[-15:])
        raise RuntimeError(f"{' '.join(words)}: exit code {code}:\n{last}")
