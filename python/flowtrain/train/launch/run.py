"""A whole run on this host: checks, ranks, final model, and summary."""

from __future__ import annotations

import json
import math
import shlex
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from flowtrain import progress
from flowtrain.config.layout import MODULES
from flowtrain.config.schema import RunConfig
from flowtrain.data.mixture import sample_order, shares
from flowtrain.data.records import Dataset
from flowtrain.events import read_accounts
from flowtrain.models.dropout import dropout_rates
from flowtrain.models.folder import check_weights
from flowtrain.models.loading import check_stored
from flowtrain.models.recompute import check_recompute
from flowtrain.models.registry import family_for
from flowtrain.train.launch.cache import cache_lines, check_cache
from flowtrain.train.launch.errors import RunFailed
from flowtrain.train.launch.host import Listening, RunHost
from flowtrain.train.launch.layout import chosen_layout
from flowtrain.train.launch.local import run_local_ranks
from flowtrain.train.launch.sharding import check_offload, check_sharding
from flowtrain.train.launch.signals import StopRequest, end, exit_on_signals, say
from flowtrain.train.launch.stream import check_stream
from flowtrain.train.launch.threads import with_threads
from flowtrain.train.ranks.device import check_device
from flowtrain.train.ranks.hook import load_hook
from flowtrain.train.ranks.trackers import check_trackers
from flowtrain.train.state import atomic, logs
from flowtrain.train.state.checkpoint_files import best, latest, read_meta
from flowtrain.train.state.choice import write_choice
from flowtrain.train.state.corrections import check_corrections
from flowtrain.train.state.ending import recorded_end
from flowtrain.train.state.final import FINAL, write_final
from flowtrain.train.state.job_file import write_job
from flowtrain.train.state.run_folder import CONFIG, check_unused, open_run
from flowtrain.train.state.trained import Trained

SUMMARY = "summary.json"
_LEFT_OUT = ("skipped", "dropped", "truncated")


def with_steps(config: RunConfig, *, epoch_draws: int) -> RunConfig:
    """The configuration with a number of steps in place of epochs."""
    train = config.train
    if train.steps:
        return config
    steps = math.ceil(train.epochs * epoch_draws / train.global_batch)
    return replace(config, train=replace(train, steps=steps, epochs=0.0))


def train(
    config: RunConfig,
    *,
    resume: bool = False,
    plan: Path | None = None,
    run_ranks: Callable[..., None] = run_local_ranks,
    listening: Listening | None = None,
) -> dict[str, Any]:
    """Host a run: start every rank, wait for the end, write `RUN/final`.

    Args:
        config: The run.
        resume: Resume from the latest checkpoint, if there is one. If it is the end of the run,
            no rank is started, and only `RUN/final` is written again.
        plan: The `plan.json` whose layout the configuration has; the run keeps a copy.
        run_ranks: Starts the ranks and waits for them, as `run_local_ranks` does.
        listening: How other hosts take part; None if they do not.

    Returns:
        The summary, also written to `RUN/summary.json`.

    Raises:
        ConfigError: The model or the data set cannot be used, or a field does not fit them; the run
            folder is in use or holds another run, the port is in use, a field has changed that must
            not change at a resume (`flowtrain.train.state.resume.RULES`), or files of the model
            have changed since the start.
        DeviceError: There is no device of `model.device`.
        ModelError: The weights of the model cannot be loaded.
        KeyboardInterrupt, SystemExit: The run was stopped by SIGINT, or by another signal; the
            first one while the ranks run saves it.
        RunFailed: A rank failed or died, and all others have ended; the last step has no
            checkpoint; or `RUN/final` cannot be written.
    """
    with exit_on_signals() as stop:
        return _train(
            config, stop, resume=resume, plan=plan, run_ranks=run_ranks, listening=listening
        )


def _train(
    config: RunConfig,
    stop: StopRequest,
    *,
    resume: bool,
    plan: Path | None,
    run_ranks: Callable[..., None],
    listening: Listening | None,
) -> dict[str, Any]:
    # Check what can be checked now, before every rank loads its model.
    if not resume:
        check_unused(config.run)
    progress.show("checking the model")
    check_device(config.model.device)
    family = family_for(config.model.folder, projector_side=config.projector_side, lora=config.lora)
    Trained(config.trained_parts, config.optim).check(family, mode=config.flow.mode)
    check_recompute(config.parallel, family)
    if config.model.path is not None:
        check_weights(config.model.path)
    check_cache(config.flow.cache, family)
    rates = dropout_rates(family.config)
    if config.lora.adapters and config.lora.dropout:
        rates["lora.dropout"] = config.lora.dropout
    if rates:
        shown = ", ".join(f"{name}={rate:g}" for name, rate in rates.items())
        say(
            f"{config.model.folder}: the model has dropout ({shown}): layouts draw other masks, "
            "and so have other losses"
        )
    check_trackers(config.track)
    progress.show(f"indexing {config.data.name}")
    dataset = Dataset(config.data)
    check_stream(config, dataset)
    check_corrections(config.flow)
    if not dataset.is_stream:
        order = sample_order(config.data, dataset, seed=config.train.seed)
        config = with_steps(config, epoch_draws=order.epoch_draws)
    if config.data.sources and not dataset.is_stream:
        for line in shares(config.data, dataset):
            print(f"flowtrain: {line}", file=sys.stderr)
    if config.debug.fault is not None:
        load_hook(config.debug.fault)
    started, started_at = time.perf_counter(), time.time()
    progress.show("choosing the layout")
    config, choice = chosen_layout(with_threads(config), resume=resume)
    progress.show("checking the weights")
    if config.model.path is not None:
        shardings = {config.parallel_of(module).sharding for module in MODULES}
        check_stored(config.model.path, family, in_parts=shardings != {"replicated"})
    check_sharding(config)
    check_offload(config)
    with (
        ExitStack() as after,
        open_run(config, resume=resume) as trained,
        recorded_end(config.run),
    ):
        write_choice(config.run, choice=choice, plan=plan)
        given_up = None
        if trained < config.train.steps:
            host = RunHost(config, first=trained, stop=stop)
            interface, name = (
                ("", "") if listening is None else (listening.interface, listening.name)
            )
            write_job(
                config.run, host.job, resume=resume, of_run=True, interface=interface, name=name
            )
            atomic.write_text(config.run / logs.POOL, host.job.pool + "\n")
            stop.allowed = True
            try:
                if listening is not None:
                    after.callback(host.close_gateway)
                    host.listen(listening, config.run.absolute())
                run_ranks(config, host, resume=resume)
                given_up = host.given_up
            finally:
                stop.allowed = False
                host.close()
                if config.flow.cache.path is not None:
                    for line in cache_lines(config.run / "logs" / host.job.nonce):
                        say(line)
        else:
            print(
                f"flowtrain: run={config.run}: all {trained} steps are trained already; only "
                "RUN/final is written again, and nothing is evaluated; raise train.steps to train "
                "more",
                file=sys.stderr,
            )
        checkpoint = latest(config.run)
        written = shlex.quote(str(config.run / CONFIG))
        # The command that ended may have no --resume, such as the demo.
        again = f"`flowtrain train {written} --resume`"
        if run_ranks is not run_local_ranks:
            again = f"`flowtrain host {written} --resume` and the ranks' own commands"
        if given_up is not None:
            raise _without_encoders(config, checkpoint, given_up, again)
        if listening is not None:
            again = "the same commands on all hosts, and --resume for `flowtrain host ... --listen`"
        if stop.made:
            _end_early(config, checkpoint, stop.made, again)
        assert checkpoint is not None
        if (done := read_meta(checkpoint).step + 1) != config.train.steps:
            raise RunFailed(
                f"run={config.run}: the latest checkpoint, {checkpoint}, has {done} steps, not "
                f"train.steps={config.train.steps}; RUN/final was not written"
            )
        progress.show(f"writing {config.run / FINAL}")
        try:
            change = write_final(config, checkpoint)
        except OSError as error:
            raise RunFailed(
                f"{error}; every step is trained and saved: correct that, and go on with --resume"
            ) from error
    seconds = time.perf_counter() - started
    summary = logs.json_values({**_summary(config, started_at), **change, "seconds": seconds})
    atomic.write_text(config.run / SUMMARY, json.dumps(summary, indent=2) + "\n")
    if counts := [f"{n:,} {how}" for how in _LEFT_OUT if (n := summary[f"{how}_samples"])]:
        say(
            f"samples of this run: {', '.join(counts)}; {logs.METRICS} has the counts of each "
            "step, and `flowtrain data check` names the samples"
        )
    return summary


def _without_encoders(
    config: RunConfig, checkpoint: Path | None, reason: str, again: str
) -> RunFailed:
    """The error of a run that had to end as nothing was encoded any more."""
    done = read_meta(checkpoint).step + 1 if checkpoint is not None else 0
    saved = "which are saved" if done else "so that there is nothing to save"
    return RunFailed(
        f"run={config.run}: {reason}: it ended after {done} of {config.train.steps} steps, "
        f"{saved}; go on with {again}, with encoder ranks"
    )


def _end_early(config: RunConfig, checkpoint: Path | None, number: int, again: str) -> None:
    """End the process after a request to stop, unless the run was complete already."""
    done = read_meta(checkpoint).step + 1 if checkpoint is not None else 0
    if done == config.train.steps:
        return
    saved = ", which are saved" if done else ""
    end(
        number,
        f"run={config.run}: stopped by {signal.Signals(number).name} after {done} of "
        f"{config.train.steps} steps{saved}; go on with {again}",
    )


def _summary(config: RunConfig, started_at: float) -> dict[str, Any]:
    accounts = read_accounts(config.run)
    begun = [account.started_at for account in accounts.values()]
    # Lines may be lost, as `open_run` has said; without any there is no figure.
    steps = logs.read_log(config.run / logs.METRICS)
    times = logs.read_log(config.run / logs.TIMING)
    seconds = sum(t["seconds"] for t in times)
    speed: dict[str, float | None] = dict.fromkeys(("tokens_per_s", "mfu", "peak_flops"))
    if times:
        speed = {
            "tokens_per_s": sum(t["tokens"] for t in times) / seconds,
            "mfu": sum(t["mfu"] * t["seconds"] for t in times) / seconds,
            "peak_flops": times[-1]["peak_flops"],
        }
    layout = config.flow.chosen
    return {
        "mode": config.flow.mode,
        "layout": "colocated" if layout.colocated else "decoupled",
        "encoder_ranks": layout.encoder_ranks,
        "backbone_ranks": layout.backbone_ranks,
        "steps": config.train.steps,
        "loss": steps[-1]["loss"] if steps else None,
        **_evaluated(config.run),
        "target_tokens": sum(s["target_tokens"] for s in steps),
        **{name: sum(s[name] for s in steps) for name in (f"{how}_samples" for how in _LEFT_OUT)},
        **speed,
        "bytes_through_pool": sum(t["bytes_through_pool"] for t in times),
        **{
            name: sum(t.get(name, 0) for t in times)
            for name in ("cache_hits", "cache_misses")
            if any(name in t for t in times)
        },
        "startup_seconds": max(0.0, min(begun) - started_at) if begun else 0.0,
        "train_seconds": seconds,
        "activity_seconds": {label: a.seconds for label, a in accounts.items()},
        "activity_cpu_seconds": {label: a.cpu_seconds for label, a in accounts.items()},
        "planner_cpu_seconds": sum(a.planner_cpu_seconds for a in accounts.values()),
        **(packing_means([s["packing"] for s in steps]) if steps else {}),
    }


def _evaluated(run: Path) -> dict[str, Any]:
    """Loss of the latest evaluation, and that of the best checkpoint with its steps."""
    evaluations = logs.read_log(run / logs.EVALUATIONS)
    if not evaluations:
        return {}
    found: dict[str, Any] = {"eval_loss": evaluations[-1]["loss"]}
    if (path := best(run)) is not None:
        meta = read_meta(path)
        found |= {"best_eval_loss": meta.eval_loss, "best_steps": meta.step + 1}
    return found


def packing_means(packings: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Means over steps of the ratios in arrival order (`_before`) and as packed (`_after`).

    Args:
        packings: `packing` of each line of the metrics.
    """
    means = {"packing_gap": statistics.fmean(packing["gap"] for packing in packings)}
    for when, kind in (("before", "arrival"), ("after", "packed")):
        for name in packings[0][kind]:
            means[f"{name}_{when}"] = statistics.fmean(p[kind][name] for p in packings)
    return means
