"""A loop that is connected to an encoder of its own trains as the plain loop does."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support import imported, nothing_left
from transformers import AutoConfig, AutoModelForImageTextToText

import flowtrain
from flowtrain.config import ConfigError
from flowtrain.data import VlmCollator, VlmSamples
from flowtrain.steps import StepPlan
from flowtrain.train.control.ending import JobFailed

LOOP = Path(__file__).parent / "connect_loop.py"
_loop = imported(LOOP)
BATCH, STEPS, CLIP, MAX_TOKENS = _loop.BATCH, _loop.STEPS, _loop.CLIP, _loop.MAX_TOKENS
load, rate_at = _loop.load, _loop.rate_at
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def folder(tmp_path: Path, data: Path) -> Path:
    """A model with weights."""
    torch.manual_seed(1)
    config = AutoConfig.from_pretrained(data / "model")
    folder = tmp_path / "model"
    for file in (data / "model").iterdir():
        folder.mkdir(exist_ok=True)
        folder.joinpath(file.name).write_bytes(file.read_bytes())
    AutoModelForImageTextToText.from_config(config).save_pretrained(folder)
    return folder


@contextmanager
def encoder(job: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "flowtrain", "encoder", "--job", str(job)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()  # And with it its ranks.
        process.communicate()


@contextmanager
def loops(ranks: int, *arguments: Any) -> Iterator[list[subprocess.Popen[str]]]:
    """The ranks of a connected loop."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [
        subprocess.Popen([sys.executable, str(LOOP), *map(str, (rank, ranks, *arguments))], **pipes)
        for rank in range(ranks)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def plain(
    folder: Path, data: Path, mode: str, wrap: str = "none"
) -> tuple[list[float], list[float], dict[str, torch.Tensor]]:
    """Losses, gradient norms and final weights."""
    model, optimizer = load(folder, mode, wrap)
    samples, collate = VlmSamples(folder, data / "train.jsonl"), VlmCollator(folder)
    losses, norms = [], []
    for step in range(STEPS):
        batch = collate([samples[n] for n in range(step * BATCH, (step + 1) * BATCH)])
        loss = model(**batch).loss
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, norms, model.state_dict()


def check_weights(saved: Path, weights: dict[str, torch.Tensor]) -> None:
    model = AutoModelForImageTextToText.from_pretrained(saved, dtype=torch.float32)
    for name, value in model.state_dict().items():
        distance = torch.dist(value, weights[name]) / weights[name].norm().clamp(min=1e-6)
        assert distance <= 1e-5, name


@pytest.mark.limit(240)
@pytest.mark.parametrize(
    ("mode", "wrap"),
    [
        ("strict", "none"),
        pytest.param("frozen", "none", marks=pytest.mark.deep),
        pytest.param("strict", "ddp", marks=pytest.mark.deep),
        pytest.param("strict", "fsdp", marks=pytest.mark.deep),
        pytest.param("frozen", "lora", marks=pytest.mark.deep),
    ],
)
def test_a_connected_loop_equals_the_plain_loop(
    mode: Any, wrap: str, folder: Path, data: Path, tmp_path: Path
) -> None:
    ranks = 2 if wrap in ("ddp", "fsdp") else 1
    encoder_ranks = 2 if wrap == "ddp" else 1
    losses, norms, weights = plain(folder, data, mode, wrap if wrap == "lora" else "none")
    with nothing_left(), encoder(tmp_path / "job") as process:
        given = (ranks, folder, data, tmp_path, mode, STEPS, wrap, encoder_ranks)
        with loops(*given) as processes:
            for loop in processes:
                _, errors = loop.communicate(timeout=120)
                assert loop.returncode == 0, errors
        assert process.wait(60) == 0, process.communicate()[1]
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(ranks)]
    assert sum(each["microbatches"] for each in found) > STEPS
    assert not any(each["draws"] for each in found)
    together = [sum(step) / ranks for step in zip(*(each["losses"] for each in found), strict=True)]
    assert together == pytest.approx(losses, rel=1e-6)
    assert min(norms) > CLIP
    for each in found:
        assert each["norms"] == pytest.approx(norms, rel=1e-5)
    if wrap == "lora":
        adapted = torch.load(tmp_path / "adapters.pt")
        adapters = {name: value for name, value in adapted.items() if "lora_B" in name}
        assert all(value.norm() > 1e-3 for value in adapters.values())
        for name, value in adapters.items():
            assert torch.dist(value, weights[name]) <= 1e-5 * weights[name].norm(), name
        return
    check_weights(tmp_path / "out", weights)
    start = load(folder, mode)[0].state_dict()
    moved = [name for name in weights if not torch.equal(start[name], weights[name])]
    assert any("visual" in name for name in moved) == (mode == "strict")


@pytest.mark.deep
@pytest.mark.limit(240)
def test_a_colocated_loop_equals_the_plain_loop_also_resumed(
    folder: Path, data: Path, tmp_path: Path
) -> None:
    losses, norms, weights = plain(folder, data, "strict")
    parts = []
    with nothing_left(), encoder(tmp_path / "job") as process:
        for steps in (2, STEPS):
            tmp_path.joinpath("group").unlink(missing_ok=True)
            given = (2, folder, data, tmp_path, "strict", steps, "fsdp", 1, "colocated")
            with loops(*given) as processes:
                for loop in processes:
                    _, errors = loop.communicate(timeout=120)
                    assert loop.returncode == 0, errors
            parts.append([torch.load(tmp_path / f"{rank}.pt") for rank in range(2)])
        # No encoder rank is wanted.
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 2
        assert "the loop has layout='colocated', so that its own 2 ranks encode" in errors
    assert not any(each["draws"] for part in parts for each in part)
    pairs = [pair for part in parts for pair in zip(*(e["losses"] for e in part), strict=True)]
    assert [sum(pair) / 2 for pair in pairs] == pytest.approx(losses, rel=1e-6)
    for rank in range(2):
        own = [norm for part in parts for norm in part[rank]["norms"]]
        assert own == pytest.approx(norms, rel=1e-5)
    check_weights(tmp_path / "out", weights)
    lines = (tmp_path / "job" / "plan.log").read_text().splitlines()
    items = [item for line in lines for item in StepPlan.from_json(line).items]
    assert any(item.is_dummy for item in items)
    assert any(item.encoder != item.reader for item in items if not item.is_dummy)


def one_step(flow: Any, model: Any, data: Path, *, steps: int | None = None) -> Iterator[int]:
    """Steps of a loop, each after its update."""
    for step in flow.steps(data / "train.jsonl", samples=2, max_tokens=MAX_TOKENS, steps=steps):
        for batch in step:
            (model(**batch).loss * batch.weight).backward()
        flow.step()
        yield step.number


@pytest.mark.limit(240)
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.deep)]
)
def test_the_end_of_the_encoder_is_an_error_of_the_loop(
    number: signal.Signals, folder: Path, data: Path, tmp_path: Path
) -> None:
    model, optimizer = load(folder, "strict")
    with nothing_left(), encoder(tmp_path / "job") as process:
        with (
            pytest.raises(JobFailed, match=r"^rank encoder.0 \(pid \d+\) died$"),
            flowtrain.connect(tmp_path / "job", model, optimizer) as flow,
        ):
            for step in one_step(flow, model, data):
                if step == 1:
                    process.send_signal(number)  # Its rank ends with it.
        assert process.wait(60) == (143 if number == signal.SIGTERM else -number)
        # The interpreter goes on, and with another model so does the loop.
        with pytest.raises(ConfigError, match="has no tower; load the model again"):
            flowtrain.connect(tmp_path / "job", model, optimizer).__enter__()
        again = load(folder, "strict")
        with (
            pytest.raises(ConfigError, match="it holds a run already"),
            flowtrain.connect(tmp_path / "job", *again) as flow,
        ):
            next(one_step(flow, again[0], data))


@pytest.mark.deep
@pytest.mark.limit(240)
def test_a_notebook_cell_that_was_interrupted_is_run_again(
    folder: Path, data: Path, tmp_path: Path
) -> None:
    numbers = []

    def cell(*, interrupted: bool) -> None:
        model, optimizer = load(folder, "strict")
        job = tmp_path / "job"
        with flowtrain.connect(job, model, optimizer, save_every=1, resume=True) as flow:
            for number in one_step(flow, model, data, steps=5):
                numbers.append(number)
                if interrupted and number == 2:
                    signal.raise_signal(signal.SIGINT)

    with nothing_left(), encoder(tmp_path / "job") as process:
        with pytest.raises(KeyboardInterrupt):
            cell(interrupted=True)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    failed = re.escape(f"rank backbone.0 (pid {os.getpid()}) failed: KeyboardInterrupt")
    assert re.search(rf"^flowtrain: .* rank encoder.0 \(pid \d+\): {failed};", errors, re.M)
    assert numbers == [0, 1, 2]
    with nothing_left(), encoder(tmp_path / "job") as process:
        cell(interrupted=False)
        assert process.wait(60) == 0
    # Of the last step before Ctrl-C the checkpoint may not be complete.
    again = numbers[3:]
    assert again == list(range(again[0], 5)) and again[0] in (2, 3)


def lines(program: Path) -> list[str]:
    """Its lines behind the docstring, without their indentation."""
    code = program.read_text().split('"""')[2]
    return [line.strip() for line in code.splitlines() if line.strip()]


@pytest.mark.limit(240)
def test_the_example_changes_eight_lines_and_trains_the_same_model(
    folder: Path, data: Path, tmp_path: Path
) -> None:
    twin, connected = EXAMPLES / "connect_plain.py", EXAMPLES / "connect.py"
    assert len(set(lines(connected)) - set(lines(twin))) <= 8
    head = data.joinpath("train.jsonl").read_text().splitlines(keepends=True)[:24]
    samples = data / "head.jsonl"  # Beside its images.
    samples.write_text("".join(head))
    with encoder(tmp_path / "connect.job") as process:
        for program in (connected, twin):
            out = tmp_path / program.stem
            command = [sys.executable, str(program), str(folder), str(samples), str(out)]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert "step 2: gradient norm" in done.stdout
        assert process.wait(60) == 0
    expected = AutoModelForImageTextToText.from_pretrained(tmp_path / "connect_plain")
    check_weights(tmp_path / "connect", expected.state_dict())


@pytest.mark.deep
@pytest.mark.limit(240)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_of_a_loop_is_named_by_all_others(
    victim: int, folder: Path, data: Path, tmp_path: Path
) -> None:
    with (
        nothing_left(),
        encoder(tmp_path / "job") as process,
        loops(2, folder, data, tmp_path, "strict", 10_000, "ddp") as ranks,
    ):
        stdout = ranks[victim].stdout
        assert stdout is not None and stdout.readline() == "0\n"
        ranks[victim].kill()
        died = f"rank backbone.{victim} (pid {ranks[victim].pid}) died"
        # If it hosts the job, the host died with it.
        host = f"rank host (pid {ranks[victim].pid}) died"
        for other in (process, ranks[1 - victim]):
            _, errors = other.communicate(timeout=60)
            assert other.returncode == 1
            assert died in errors or (victim == 0 and host in errors), errors


@pytest.mark.deep
@pytest.mark.limit(240)
def test_an_error_of_the_first_rank_at_the_start_is_that_of_all(
    folder: Path, tmp_path: Path
) -> None:
    absent = tmp_path / "absent"
    with loops(2, folder, absent, tmp_path, "strict", STEPS, "ddp") as ranks:
        errors = [rank.communicate(timeout=120)[1] for rank in ranks]
    wrong = f"DataError: {absent / 'train.jsonl'}: "
    assert wrong in errors[0]
    assert f"JobFailed: rank backbone.0 (pid {ranks[0].pid}) failed: {wrong}" in errors[1]


@pytest.mark.deep
@pytest.mark.limit(240)
def test_a_killed_loop_is_resumed(folder: Path, data: Path, tmp_path: Path) -> None:
    _, _, weights = plain(folder, data, "strict")
    given = (2, folder, data, tmp_path, "strict", STEPS, "fsdp")
    with nothing_left(), encoder(tmp_path / "job") as process, loops(*given) as processes:
        stdout = processes[0].stdout
        assert stdout is not None
        assert [stdout.readline() for _ in range(2)] == ["0\n", "1\n"]
        processes[0].kill()
        for each in (process, *processes):
            each.communicate(timeout=60)
    tmp_path.joinpath("group").unlink()
    with encoder(tmp_path / "job") as process, loops(*given) as processes:
        for loop in processes:
            _, errors = loop.communicate(timeout=120)
            assert loop.returncode == 0, errors
        assert process.wait(60) == 0
    assert len(torch.load(tmp_path / "0.pt")["losses"]) == STEPS - 2
    check_weights(tmp_path / "out", weights)
