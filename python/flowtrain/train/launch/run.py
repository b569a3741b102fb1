"""A run on this host: its folder, its job, its ranks, and the model that it ends with."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from safetensors import SafetensorError

from flowtrain.config.schema import RunConfig
from flowtrain.data.jsonl import JsonlFile
from flowtrain.models.adapter import adapter_for
from flowtrain.train.control.job import JobHost
from flowtrain.train.launch.local import RunFailed, run_gangs
from flowtrain.train.launch.signals import ending_by_signals
from flowtrain.train.ranks import metrics
from flowtrain.train.ranks.hook import load_hook
from flowtrain.train.state import atomic
from flowtrain.train.state.checkpoint import latest, read_mark
from flowtrain.train.state.final import write_final
from flowtrain.train.state.run_folder import run_folder

SUMMARY = "summary.json"


def train(
    config: RunConfig, *, resume: bool = False, run_ranks: Callable[..., None] = run_gangs
) -> dict[str, Any]:
    """Train on this host: start every rank, wait for the end, write `RUN/final`.

    Args:
        config: The run.
        resume: Go on from the latest checkpoint, if there is one. Where that is the end of the
            run, no rank is started, and `RUN/final` alone is written again.
        run_ranks: Called as `run_gangs` is; returns when every rank has ended.

    Returns:
        The summary, also written to `RUN/summary.json`.

    Raises:
        ConfigError: The run folder is in use or holds another run, the port is taken, a field has
            changed that a resumed run cannot change (`flowtrain.train.state.resume.RULES`), or
            files of the model have changed since the run began.
        RunFailed: A rank failed or died, and all others have ended; or the ranks left no
            checkpoint of the last step, or `RUN/final` cannot be written.
    """
    # What can be wrong from the start is better said before every rank has loaded its model.
    adapter_for(config.model.folder)
    JsonlFile(config.data.path)
    if config.debug.fault is not None:
        load_hook(config.debug.fault)
    started = time.perf_counter()
    with ending_by_signals(), run_folder(config, resume=resume) as trained:
        if trained < config.train.steps:
            host = JobHost(config, first=trained)
            try:
                run_ranks(config, host, resume=resume)
            finally:
                host.close()
        else:
            print(
                f"flowtrain: run={config.run}: all {trained} steps were trained before; only "
                "RUN/final is written again; raise train.steps to go on",
                file=sys.stderr,
            )
        checkpoint = latest(config.run)
        assert checkpoint is not None
        if (done := read_mark(checkpoint).step + 1) != config.train.steps:
            raise RunFailed(
                f"run={config.run}: the latest checkpoint, {checkpoint}, has {done} steps, not "
                f"train.steps={config.train.steps}; RUN/final was not written"
            )
        try:
            change = write_final(config, checkpoint)
        except (OSError, SafetensorError) as error:
            raise RunFailed(
                f"{config.run / 'final'}: {error}; every step is trained and saved: mend that, and "
                "go on with --resume"
            ) from error
    seconds = time.perf_counter() - started
    summary = metrics.json_values({**_summary(config), **change, "seconds": seconds})
    atomic.write_text(config.run / SUMMARY, json.dumps(summary, indent=2) + "\n")
    return summary


def _summary(config: RunConfig) -> dict[str, Any]:
    steps = metrics.read_log(config.run / metrics.METRICS)
    times = metrics.read_log(config.run / metrics.TIMING)
    seconds = sum(t["seconds"] for t in times)
    return {
        "mode": config.flow.mode,
        "encoder_ranks": config.flow.encoders,
        "backbone_ranks": config.flow.backbones,
        "steps": len(steps),
        "loss": steps[-1]["loss"],
        "target_tokens": sum(s["target_tokens"] for s in steps),
        **{
            name: sum(s[name] for s in steps)
            for name in ("skipped_samples", "dropped_samples", "truncated_samples")
        },
        "tokens_per_s": sum(t["tokens"] for t in times) / seconds,
        "mfu": sum(t["mfu"] * t["seconds"] for t in times) / seconds,
        "peak_flops": times[-1]["peak_flops"],
        "bytes_through_pool": sum(t["bytes_through_pool"] for t in times),
        "train_seconds": seconds,
        **balance_of([s["packing"] for s in steps]),
    }


def balance_of(packings: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Means over steps: of arrival order (before), and of what was run (after).

    Args:
        packings: `packing` of each line of the metrics.
    """
    means = {"packing_gap": statistics.fmean(packing["gap"] for packing in packings)}
    for when, kind in (("before", "arrival"), ("after", "packed")):
        for name in packings[0][kind]:
            means[f"{name}_{when}"] = statistics.fmean(p[kind][name] for p in packings)
    return means
