"""How well does a GPU train a Qwen3-VL of 2 or 4 billion parameters, and what does the flow cost?

One GPU, everything trains, bfloat16. Samples have one image at its own resolution and a text, with
lengths of the preset `native`. Three variants train on the same samples, each in processes of its
own and a round after another: `flow`, `flowtrain train` with one colocated rank; `padded`, the
plain Hugging Face loop; and `backbone`, the language model of the run alone, on the same packed
rows, with image rows from memory. MFU counts the FLOPs of the samples (no padding, no
recomputation, causal attention half, logits of targets alone) over the data sheet's bfloat16 peak;
that of `backbone` counts the language model's. A variant that fails has the end of its error in
place of figures, and the exit code is 1. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import trace_kernels
from gpu_report import conditions
from released_model import QWEN3_VL, TOKEN_PIXELS, VOCABULARY, write_qwen3_vl

from flowtrain.bench.train.compare import ratio
from flowtrain.bench.train.runs import (
    Run,
    Task,
    environment,
    flow_config,
    flow_figures,
    run_plain,
)
from flowtrain.bench.train.synthetic import Images, write_samples
from flowtrain.config import dump
from flowtrain.config.load import load
from flowtrain.cost.flops import train_flops
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import TinyModel
from flowtrain.steps import CorrectionEvent, StepPlan
from flowtrain.train.ranks.peak import peak_flops
from flowtrain.train.state.logs import PLANS, PROFILE, TIMING
from flowtrain.workloads import preset

ALL = ("encoder", "projector", "backbone")
SMALL = TinyModel()
LIMIT_S = 600
END_S = 30
PROFILED = 2
"""Steps that a profile adds: the one that is traced, and the one in which the trace is written."""


def lengths(count: int, *, max_tokens: int, scale: float, seed: int) -> list[tuple[int, int]]:
    """Text and image tokens of samples of the preset `native`; the longest are cut."""
    drawn = preset("native", count, seed=seed)
    visual = (drawn.visual_tokens * scale).astype(int).clip(4, max_tokens * 3 // 4)
    text = ((drawn.tokens - drawn.visual_tokens) * scale).astype(int).clip(16, max_tokens // 5)
    return list(zip(text.tolist(), visual.tolist(), strict=True))


def flops(run: Path) -> tuple[list[float], list[float]]:
    """FLOPs of each step of a run: of the whole model, and of the backbone alone."""
    config = load(run / "config.yaml")
    family = family_for(config.model.folder, projector_side=config.projector_side)
    lines = (run / PLANS).read_bytes().splitlines()
    read = (StepPlan.from_json(line) for line in lines if not CorrectionEvent.is_json_of(line))
    whole, backbone = [], []
    for plan in read:
        if plan.kind != "train":
            continue
        samples = [
            family.sample_flops(
                document.num_tokens, document.grids, num_targets=document.num_targets
            )
            for _, documents in plan.documents_of(0)
            for document in documents
        ]
        whole.append(sum(train_flops(sample, ALL).total for sample in samples))
        backbone.append(sum(3 * sample.on("backbone", config.projector_side) for sample in samples))
    return whole, backbone


def run_flow(task: Task, folder: Path, *, profile: Path | None) -> Run:
    """Run `flowtrain train` to its last step, and kill it before it writes the model.

    Args:
        task: The training.
        folder: Folder for configuration and run.
        profile: Folder for the trace and the kernels of the last step but one, which is not
            counted, nor is the last one.

    Raises:
        RuntimeError: It ended before, or is not done after LIMIT_S.
    """
    folder.mkdir(parents=True)
    config = flow_config(task, folder / "run")
    if profile is not None:
        track = replace(config.track, profile_start=task.steps - 2, profile_steps=1)
        config = replace(config, track=track)
    path, log, timing = folder / "config.yaml", folder / "log", config.run / TIMING
    path.write_text(dump(config))
    started, until = time.time(), time.monotonic() + LIMIT_S
    words = [sys.executable, "-m", "flowtrain", "train", str(path)]
    with log.open("w") as out:
        launcher = subprocess.Popen(
            words, stdout=out, stderr=out, env=environment(task), start_new_session=True
        )
        try:
            while not (timing.exists() and timing.read_bytes().count(b"\n") == task.steps):
                if launcher.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"flow: {log.read_text(errors='replace')[-2000:]}")
                time.sleep(0.1)
        finally:
            _end(launcher)
    run = flow_figures(config, task, started=started)
    if profile is None:
        return run
    profile.mkdir(parents=True, exist_ok=True)
    (trace,) = (config.run / PROFILE).iterdir()
    shutil.copy(trace, profile / "trace.json")
    lines = trace_kernels.figures(json.loads(trace.read_text()), top=40)
    (profile / "kernels.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    counted = task.steps - PROFILED
    return replace(
        run, tokens=run.tokens[:counted], seconds=run.seconds[:counted], losses=run.losses[:counted]
    )


def _end(launcher: subprocess.Popen[bytes]) -> None:
    """Kill a launcher, and wait for its ranks, which end as they notice it."""
    launcher.kill()
    launcher.wait()
    until = time.monotonic() + END_S
    with suppress(ProcessLookupError):
        while time.monotonic() < until:
            os.killpg(launcher.pid, 0)
            time.sleep(0.1)
        os.killpg(launcher.pid, signal.SIGKILL)


def backbone_alone(task: Task, run: Path, flow: Run) -> Run:
    """Train the backbone alone on the plans of a run."""
    out = run.parent / "backbone.json"
    words = ["-m", "flowtrain.bench.train.alone", str(run), "--module", "backbone"]
    done = subprocess.run(
        [sys.executable, *words, "--out", str(out)],
        input="\n",
        text=True,
        capture_output=True,
        env=environment(task),
    )
    if done.returncode:
        raise RuntimeError(f"backbone: exit code {done.returncode}:\n{done.stderr[-2000:]}")
    seconds = json.loads(out.read_text())
    return replace(flow, seconds=seconds[: len(flow.seconds)])


def measured(
    task: Task, folder: Path, wanted: Sequence[str], profile: Path | None
) -> dict[str, Any]:
    """One round: the runs of the variants by name, or how they failed, and FLOPs of the steps."""
    found: dict[str, Any] = {}
    plain = task if profile is None else replace(task, steps=task.steps - PROFILED)
    variants: dict[str, Callable[[], Run]] = {
        "flow": partial(run_flow, task, folder / "flow", profile=profile),
        "backbone": lambda: backbone_alone(task, folder / "flow" / "run", found["flow"]),
        "padded": partial(run_plain, plain, "padded", folder / "padded"),
    }
    for name in wanted:
        begun = time.perf_counter()
        try:
            found[name] = variants[name]()
        except RuntimeError as error:
            found[name] = str(error)
        else:
            figures = f"{found[name].tokens_per_s:.0f} tokens/s"
            said = f"{name}: {figures}, {time.perf_counter() - begun:.0f} s with start-up"
            print(json.dumps({"seen": said, "seconds": found[name].seconds}), flush=True)
    if isinstance(found.get("flow"), Run):
        found["flops"] = flops(folder / "flow" / "run")
    return found


def mfu(run: Run, flops_by_step: Sequence[float], peak: float) -> float:
    return sum(flops_by_step[run.warmup : len(run.seconds)]) / run.measured_s / peak


def figures(rounds: Sequence[dict[str, Any]], wanted: Sequence[str], peak: float) -> dict[str, Any]:
    """Figures of all rounds by variant."""
    out: dict[str, Any] = {}
    for name in wanted:
        runs = [each[name] for each in rounds]
        if failed := [run for run in runs if isinstance(run, str)]:
            out[name] = {"failed": failed[0][-1500:]}
            continue
        out[name] = {
            "tokens_per_s": [round(run.tokens_per_s) for run in runs],
            "step_s": [round(run.measured_s / (len(run.seconds) - run.warmup), 4) for run in runs],
            "last_loss": runs[-1].losses[-1],
        }
        if all("flops" in each for each in rounds):
            part = 1 if name == "backbone" else 0
            shares = [
                mfu(run, each["flops"][part], peak) for run, each in zip(runs, rounds, strict=True)
            ]
            out[name]["mfu"] = round(statistics.median(shares), 4)
    runs_of = {name: [each[name] for each in rounds] for name in wanted if "mfu" in out[name]}
    if {"flow", "padded"} <= set(runs_of):
        out["vs_padded"] = round(ratio(runs_of["flow"], runs_of["padded"]), 3)
    if {"flow", "backbone"} <= set(runs_of):
        out["mfu_below_backbone"] = round(out["backbone"]["mfu"] - out["flow"]["mfu"], 4)
    return out


def written_inputs(folder: Path, given: argparse.Namespace, steps: int) -> dict[str, Any]:
    """Write model and data, unless an earlier call with the same options has.

    Raises:
        SystemExit: The folder is of other options.
    """
    done = folder / "inputs.json"
    options = [steps, given.global_batch, given.max_tokens, given.size]
    if done.exists():
        setting: dict[str, Any] = json.loads(done.read_text())
        if setting["inputs"] != options:
            sys.exit(f"{folder} has inputs for {setting['inputs']}, not {options}: delete it")
        return setting
    begun = time.perf_counter()
    samples = lengths(
        steps * given.global_batch,
        max_tokens=given.max_tokens,
        scale=1 / 16 if given.size == "tiny" else 1.0,
        seed=0,
    )
    write_samples(
        folder / "data",
        samples,
        seed=0,
        max_tokens=given.max_tokens,
        images=Images(token_pixels=TOKEN_PIXELS, max_tokens=given.max_tokens, smooth=True),
    )
    written = time.perf_counter()
    parameters = write_qwen3_vl(
        folder / "model",
        SMALL if given.size == "tiny" else QWEN3_VL[given.size],
        vocabulary=4096 if given.size == "tiny" else VOCABULARY,
        device=given.device,
    )
    setting = {
        "bench": "gpu_train",
        "inputs": options,
        "parameters": parameters,
        "tokens_per_step": round(sum(sum(sample) for sample in samples) / steps),
        "data_s": round(written - begun, 1),
        "model_s": round(time.perf_counter() - written, 1),
    }
    done.write_text(json.dumps(setting))
    return setting


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variants", nargs="*", default=["flow", "backbone", "padded"])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10, help="of a run, warm-up included")
    parser.add_argument("--warmup", type=int, default=3, help="steps that are not measured")
    parser.add_argument("--global-batch", type=int, default=32, help="samples per step")
    parser.add_argument("--microbatch-tokens", type=int, default=8192)
    parser.add_argument("--max-tokens", type=int, default=4096, help="of a sample")
    parser.add_argument("--batch-size", type=int, default=2, help="of a padded microbatch")
    parser.add_argument("--workers", type=int, default=8, help="processes that read")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--size", choices=(*QWEN3_VL, "tiny"), default="2b", help="tiny is to try this file"
    )
    parser.add_argument("--compile", action="store_true", help="model.compile")
    parser.add_argument("--flow", type=json.loads, default={"chunk_slots": 1}, metavar="JSON")
    parser.add_argument("--parallel", type=json.loads, default={}, metavar="JSON")
    parser.add_argument("--profile", type=Path, help="folder for a trace of a step")
    parser.add_argument(
        "--inputs", type=Path, help="folder of model and data, used again if it exists"
    )
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    given = parser.parse_args()
    steps = given.steps + (PROFILED if given.profile else 0)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        inputs = given.inputs or root
        setting = written_inputs(inputs, given, steps)
        print(json.dumps(setting), flush=True)
        dtype = torch.bfloat16 if given.device == "cuda" else torch.float32
        task = Task(
            model=inputs / "model",
            data=inputs / "data" / "train.jsonl",
            steps=steps,
            warmup=given.warmup,
            global_batch=given.global_batch,
            microbatch_tokens=given.microbatch_tokens,
            batch_size=given.batch_size,
            loads=True,
            ranks=1,
            workers=given.workers,
            device=given.device,
            dtype=str(dtype).removeprefix("torch."),
            optim={"lr": 1e-5, "betas": [0.9, 0.999], "clip_norm": 1.0},
            flow={"ranks": 1, **given.flow},
            parallel=given.parallel,
            compile=given.compile,
        )
        rounds = [
            measured(task, root / f"round-{number}", given.variants, given.profile)
            for number in range(given.rounds)
        ]
    peak = peak_flops(torch.device(given.device), dtype)
    options = {key: value for key, value in vars(given).items() if not isinstance(value, Path)}
    result = {
        **setting,
        **figures(rounds, given.variants, peak),
        "peak_flops": peak,
        "options": options,
        "conditions": conditions(),
    }
    if given.out is not None:
        given.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    sys.exit(any("failed" in result[name] for name in given.variants))


if __name__ == "__main__":
    main()
