"""Differences of a loop that is connected to encoder ranks from the plain loop.

The plain loop computes the whole unmodified model in one process, one sample at a time, on what the
model's own processor makes of each sample.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from subprocess import PIPE, Popen
from types import MappingProxyType
from typing import Any

import connect_loop
import processed_samples
import reference_loop
import torch
from connect_loop import CLIP, Loop, load, rate_at
from transformers import AutoConfig, AutoModelForImageTextToText

import flowtrain_core
from flowtrain.train.state.job_file import job_path, read_job
from flowtrain.train.state.logs import read_log

TIMEOUT_S = 180.0
_POLL_S = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Plain:
    """Losses, norms and held-out losses of the plain loop by step, and its weights.

    `start` has those that train as they were before the first step, `weights` all after the last.
    """

    start: dict[str, torch.Tensor]
    losses: dict[int, float]
    norms: dict[int, float]
    evaluations: dict[int, float]
    weights: dict[str, torch.Tensor]


def write_weights(folder: Path) -> None:
    """Draw the weights of a model whose folder has none."""
    torch.manual_seed(1)
    config = AutoConfig.from_pretrained(folder)
    AutoModelForImageTextToText.from_config(config).save_pretrained(folder)


def plain(loop: Loop) -> Plain:
    """Train on the same samples with the whole model."""
    model, optimizer = load(loop)
    trained = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
    start = {name: value.detach().clone() for name, value in trained}
    samples = reference_loop.Samples(Path(loop.data), Path(loop.model))
    dtype = reference_loop.DTYPES[loop.dtype]
    losses, norms, evaluations = {}, {}, {}
    held_out = [] if loop.held_out is None else _held_out(loop)
    for step in range(loop.steps):
        chosen = [samples[step * loop.samples + n] for n in range(loop.samples)]
        count = sum(map(_num_targets, chosen))
        losses[step] = 0.0
        for sample in chosen:
            loss = reference_loop.loss_sum(model, sample, dtype) / count
            loss.backward()
            losses[step] += float(loss.detach())
        norms[step] = float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP))
        for group in optimizer.param_groups:
            group["lr"] = rate_at(loop, step)
        optimizer.step()
        optimizer.zero_grad()
        is_due = loop.evaluate_every and (step + 1) % loop.evaluate_every == 0
        if held_out and (is_due or step + 1 == loop.steps):
            with torch.no_grad():
                sums = [float(reference_loop.loss_sum(model, each, dtype)) for each in held_out]
            evaluations[step] = sum(sums) / sum(map(_num_targets, held_out))
    return Plain(
        start=start,
        losses=losses,
        norms=norms,
        evaluations=evaluations,
        weights=model.state_dict(),
    )


def _held_out(loop: Loop) -> list[dict[str, torch.Tensor]]:
    assert loop.held_out is not None
    file = Path(loop.held_out)
    samples = reference_loop.Samples(file, Path(loop.model))
    return [samples[line] for line in range(len(file.read_text().splitlines()))]


def _num_targets(sample: dict[str, torch.Tensor]) -> int:
    return int((sample["labels"][:, 1:] != -100).sum())


def compare(loop: Loop, expected: Plain, *, resumed: bool = False) -> dict[str, Any]:
    """Run a connected loop, and compare.

    Args:
        loop: The loop.
        expected: What the plain loop found.
        resumed: Leave the loop in the middle, and go on in other processes.

    Raises:
        RuntimeError: A process failed or took too long, the job's pool was left, or random
            numbers of a loop's process were drawn.
    """
    found: list[list[dict[str, Any]]] = []
    if resumed:
        run(replace(loop, leave_after=loop.steps // 2), encoder_fails=True)
        found.append(found_by(loop))
    run(loop)
    found.append(found_by(loop))
    losses, norms, evaluations = {}, {}, {}
    for attempt in found:
        for step in attempt[0]["losses"]:
            losses[step] = sum(each["losses"][step] for each in attempt) / loop.ranks
        norms |= attempt[0]["norms"]
        evaluations |= attempt[-1]["evaluations"]  # Each rank has all.
    assert sorted(losses) == list(range(loop.steps)), losses.keys()
    if resumed and not min(found[-1][0]["losses"]):
        raise RuntimeError("the loop began with step 0 again, in place of going on")
    if any(each["draws"] for attempt in found for each in attempt):
        raise RuntimeError("a connected loop has drawn from the random numbers of its process")
    found_weights = final_weights(loop)
    assert loop.lora or found_weights.keys() == expected.weights.keys()
    weights, worst = largest_difference(found_weights, expected.weights)
    return {
        "max_rel_loss_diff": _largest(losses, expected.losses),
        "max_rel_norm_diff": _largest(norms, expected.norms),
        **({} if loop.held_out is None else _of_evaluations(loop, evaluations, expected)),
        "max_rel_weight_diff": weights,
        "worst_weight": worst,
        "weight_change": relative_change(expected.start, expected.weights),
        "clipped_steps": sum(norm > CLIP for norm in expected.norms.values()),
        "steps": loop.steps,
        "first_step": min(found[-1][0]["losses"]),
        "microbatches": sum(each["microbatches"] for attempt in found for each in attempt),
    }


def _of_evaluations(loop: Loop, found: dict[int, float], expected: Plain) -> dict[str, Any]:
    """Difference of the held-out losses, which have to be those of the log, too."""
    lines = read_log(Path(loop.out) / "job" / "eval.jsonl")
    if (logged := {line["step"]: line["loss"] for line in lines}) != found:
        raise RuntimeError(f"eval.jsonl has {logged}, but the loop was given {found}")
    return {
        "max_rel_eval_diff": _largest(found, expected.evaluations),
        "evaluations": len(found),
    }


def _largest(found: dict[int, float], expected: dict[int, float]) -> float:
    return max(abs(found[step] - value) / abs(value) for step, value in expected.items())


def final_weights(loop: Loop) -> dict[str, torch.Tensor]:
    """Weights that a connected loop has written; with adapters, those in its own model."""
    if loop.lora:
        adapted: dict[str, torch.Tensor] = torch.load(Path(loop.out) / "adapters.pt")
        return adapted
    saved = AutoModelForImageTextToText.from_pretrained(
        Path(loop.out) / "out", dtype=reference_loop.DTYPES[loop.dtype]
    )
    return dict(saved.state_dict())


def largest_difference(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]
) -> tuple[float, str]:
    """Largest relative difference of a tensor, and its name.

    In a tower without rotary positions a bias of the keys shifts all scores of a query alike, so
    that its exact gradient is zero: its difference is relative to the key weights.
    """
    worst, name_of_worst = 0.0, ""
    for name, value in found.items():
        without_gradient = "vision_tower" in name and name.endswith("k_proj.bias")
        scale = expected[name.replace(".bias", ".weight") if without_gradient else name].norm()
        difference = float((value - expected[name]).norm() / scale.clamp(min=1e-6))
        if not difference <= worst:
            worst, name_of_worst = difference, name
    return worst, name_of_worst


def relative_change(start: dict[str, torch.Tensor], end: dict[str, torch.Tensor]) -> float:
    """Change of the tensors of a start, all together."""
    moved = sum(float((end[name] - value).square().sum()) for name, value in start.items())
    return (moved / sum(float(value.square().sum()) for value in start.values())) ** 0.5


def found_by(loop: Loop) -> list[dict[str, Any]]:
    """Results of each rank of a loop."""
    return [torch.load(Path(loop.out) / f"{rank}.pt") for rank in range(loop.ranks)]


def run(loop: Loop, *, encoder_fails: bool = False) -> None:
    """Run all ranks of a loop, and its encoder ranks if it has any, until they have ended.

    Args:
        loop: The loop.
        encoder_fails: Whether the encoder has to end with code 1, as the loop is left early.

    Raises:
        RuntimeError: Another code, a timeout, or the job's pool was left in shared memory.
    """
    with ExitStack() as processes:
        codes = dict.fromkeys(processes.enter_context(ranks_of(loop)), 0)
        if loop.layout == "decoupled":
            command = processes.enter_context(encoder(Path(loop.out) / "job", loop))
            codes[command] = int(encoder_fails)
        wait_for(codes, Path(loop.out) / "job")


def wait_for(codes: dict[Started, int], job: Path) -> None:
    """Wait until processes have ended with these codes; end all if one ends with another.

    Raises:
        RuntimeError: Another code, a timeout, or the job's pool was left in shared memory.
    """
    end = time.monotonic() + TIMEOUT_S
    while any(each.process.poll() is None for each in codes):
        failed = any(each.process.returncode not in (None, code) for each, code in codes.items())
        if failed or time.monotonic() > end:
            break
        time.sleep(_POLL_S)
    for each, code in codes.items():
        if each.process.poll() != code:
            raise RuntimeError(
                f"{each.name} ended with {each.process.returncode} (None: not within "
                f"{TIMEOUT_S:g} s), not {code}: {each.errors()}"
            )
    found = read_job(job_path(job))
    assert found is not None
    if any(pool.name == found.job.pool for pool in flowtrain_core.list_pools()):
        raise RuntimeError(f"pool left in shared memory: {found.job.pool}")


@dataclass(frozen=True)
class Started:
    """A process whose standard error goes to a file."""

    name: str
    process: Popen[str]
    stderr: Path

    def errors(self) -> str:
        return self.stderr.read_text()


@contextmanager
def encoder(job: Path, loop: Loop | None = None) -> Iterator[Started]:
    """The command of the encoder ranks of a job."""
    command = ["-m", "flowtrain", "encoder", "--job", str(job)]
    with started({"encoder": command}, _environment(loop)) as [process]:
        yield process


def _environment(loop: Loop | None) -> dict[str, str]:
    """Environment in which all processes of a loop find its samples."""
    if loop is None or not loop.processed:
        return {}
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.getenv("PYTHONPATH"))))
    named = {processed_samples.MODEL: loop.model, processed_samples.DATA: loop.data}
    return {"PYTHONPATH": path, **named}


@contextmanager
def ranks_of(loop: Loop) -> Iterator[list[Started]]:
    """The ranks of a loop; each prints the number of each step that it has ended."""
    (Path(loop.out) / "group").unlink(missing_ok=True)  # Of ranks that were killed.
    given = json.dumps(asdict(loop))
    commands = {
        f"rank.{rank}": [connect_loop.__file__, str(rank), given] for rank in range(loop.ranks)
    }
    with started(commands, _environment(loop)) as ranks:
        yield ranks


@contextmanager
def started(
    commands: dict[str, list[str]], environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[list[Started]]:
    """Processes of this interpreter, which are killed at the end of the block.

    Args:
        commands: Arguments of each, by name.
        environment: Variables beside those of this process.
    """
    found = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name, arguments in commands.items():
                stderr = Path(folder, name)
                with stderr.open("w") as file:
                    process = Popen(
                        [sys.executable, *arguments],
                        stdout=PIPE,
                        stderr=file,
                        env=os.environ | environment,
                        text=True,
                    )
                found.append(Started(name, process, stderr))
            yield found
        finally:
            for each in found:
                each.process.kill()  # And with it ranks that it has started.
                each.process.communicate()
