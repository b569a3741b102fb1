"""A Trainer whose encoder is apart trains as the Trainer with the whole model does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from support import TESTS, imported, nothing_left, torch_world
from transformers import AutoConfig, AutoModelForImageTextToText

from flowtrain.config import ConfigError
from flowtrain.events import read_accounts
from flowtrain.integrations import decouple
from flowtrain.train.state.ending import how_it_ended

LOOP = TESTS.parent / "benchmarks" / "decouple_loop.py"
EXAMPLES = TESTS.parent / "examples"
_loop = imported(LOOP)


@pytest.fixture
def folder(tmp_path: Path, data: Path) -> Path:
    """A model with weights."""
    torch.manual_seed(1)
    folder = tmp_path / "model"
    shutil.copytree(data / "model", folder)
    config = AutoConfig.from_pretrained(folder)
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


def run(ranks: int, *given: object) -> list[tuple[int, str, str]]:
    """Exit code and outputs of each rank of a Trainer."""
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with torch_world(ranks) as world:
        processes = [
            subprocess.Popen(
                [sys.executable, str(LOOP), *map(str, given)],
                env=os.environ | world | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                **pipes,
            )
            for rank in range(ranks)
        ]
        try:
            return [(p.wait(120), *p.communicate()) for p in processes]
        finally:
            for process in processes:
                process.kill()


def check(found: Path, plain: Any) -> None:
    """Compare the log and the final weights of a Trainer with those of another."""
    logs = [json.loads(found.joinpath("log.json").read_text()), plain.state.log_history]
    for field, tolerance in (("loss", 1e-6), ("grad_norm", 1e-5), ("learning_rate", 0.0)):
        values = [[row[field] for row in log if field in row] for log in logs]
        assert values[0] == pytest.approx(values[1], rel=tolerance)
        assert len(values[0]) == _loop.STEPS
    check_weights(found / "out", plain.model.state_dict())


def check_weights(saved: Path, weights: dict[str, torch.Tensor]) -> None:
    model = AutoModelForImageTextToText.from_pretrained(saved, dtype=torch.float32)
    for name, value in model.state_dict().items():
        distance = torch.dist(value, weights[name]) / weights[name].norm().clamp(min=1e-6)
        assert distance <= 1e-5, name


@pytest.mark.limit(240)
def test_the_example_changes_two_lines_and_trains_the_same_model(
    folder: Path, data: Path, tmp_path: Path
) -> None:
    twin, decoupled = EXAMPLES / "decouple_plain.py", EXAMPLES / "decouple.py"
    lines = [program.read_text().split('"""')[2].splitlines() for program in (twin, decoupled)]
    assert len(set(lines[1]) - set(lines[0])) == 2
    samples = data / "head.jsonl"  # Beside its images.
    rows = data.joinpath("train.jsonl").read_text().splitlines(keepends=True)
    samples.write_text("".join(rows[:24]))
    with nothing_left(), encoder(tmp_path / "decouple" / "job") as process:
        for program in (decoupled, twin):
            command = [sys.executable, str(program), str(folder), str(samples)]
            done = subprocess.run(
                [*command, str(tmp_path / program.stem)],
                check=False,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stderr
        assert process.wait(60) == 0
    job = tmp_path / "decouple" / "job"
    assert read_accounts(job).keys() == {"encoder.0", "backbone.0"}
    assert "complete; 3 of 3 steps" in (how_it_ended(job) or "")
    expected = AutoModelForImageTextToText.from_pretrained(tmp_path / "decouple_plain")
    check_weights(tmp_path / "decouple", expected.state_dict())


@pytest.mark.deep
@pytest.mark.limit(300)
def test_two_ranks_resume_from_a_checkpoint_before_the_last_of_the_job(
    folder: Path, data: Path, tmp_path: Path
) -> None:
    plain = _loop.trainer_of("trainer", "strict", folder, data, tmp_path / "plain", save_steps=99)
    plain.train()
    given = ("trainer", "strict", folder, data, tmp_path)
    with nothing_left(), encoder(tmp_path / "job") as process:
        for code, _, errors in run(2, *given, "fail"):
            assert code == 1 and "RuntimeError: a callback failed" in errors
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "failed: RuntimeError: a callback failed" in errors
    shutil.rmtree(tmp_path / "checkpoint-4")
    with nothing_left(), encoder(tmp_path / "job") as process:
        for code, _, errors in run(2, *given, "resume"):
            assert code == 0, errors
        assert process.wait(60) == 0
    check(tmp_path, plain)


@pytest.mark.deep
@pytest.mark.limit(300)
@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")  # Of TRL and PEFT.
def test_an_sft_trainer_trains_the_same_model(folder: Path, data: Path, tmp_path: Path) -> None:
    plain = _loop.trainer_of("sft", "frozen", folder, data, tmp_path / "plain", save_steps=99)
    plain.train()
    with nothing_left(), encoder(tmp_path / "job") as process:
        [(code, _, errors)] = run(1, "sft", "frozen", folder, data, tmp_path, "start")
        assert code == 0, errors
        assert process.wait(60) == 0
    check(tmp_path, plain)


def test_arguments_that_cannot_be_used_are_refused(
    folder: Path, data: Path, tmp_path: Path
) -> None:
    def refused(match: str, trainer: Any, **others: Any) -> None:
        given = {"max_tokens": 100, "dataset": data / "train.jsonl", **others}
        with pytest.raises(ConfigError, match=match):
            decouple(trainer, tmp_path / "job", **given)

    def trainer(**others: Any) -> Any:
        return _loop.trainer_of("trainer", "strict", folder, data, tmp_path, **others)

    refused(r"^args\.save_only_model=True: .* call save_model$", trainer(save_only_model=True))
    refused(r"^args\.auto_find_batch_size=True", trainer(auto_find_batch_size=True))
    refused("^decouple: resume is for the arguments of the Trainer", trainer(), resume=True)
    other = trainer()
    other.train_dataset = [1, 2]
    refused(
        r"^train_dataset \(list\): .* make it a flowtrain\.data\.VlmSamples$", other, dataset=None
    )

    class Own(type(other)):  # type: ignore[misc]
        def compute_loss(self, *given: Any, **others: Any) -> Any:
            return super().compute_loss(*given, **others)

    other.__class__ = Own
    refused(r"^Own\.compute_loss: its loss has to be a sum", other)
