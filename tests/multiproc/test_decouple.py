"""A Trainer whose encoder is apart trains as the Trainer with the whole model does."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import connect_parity
import pytest
from bench_connect import SGD, TrainerRow, misses
from connect_parity import largest_difference, write_weights
from decouple_loop import trainer_of
from forked import ForkedPopen, start_command, start_program
from support import TESTS, nothing_left
from transformers import AutoModelForImageTextToText

from flowtrain.config import ConfigError
from flowtrain.events import read_accounts
from flowtrain.integrations import decouple
from flowtrain.train.state.ending import how_it_ended

EXAMPLES = TESTS.parent / "examples"


@pytest.fixture(autouse=True)
def _forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect_parity, "Popen", ForkedPopen)


@pytest.fixture
def folder(tmp_path: Path, data: Path) -> Path:
    """A model with weights."""
    folder = tmp_path / "model"
    shutil.copytree(data / "model", folder)
    write_weights(folder)
    return folder


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
    job = tmp_path / "decouple" / "job"
    with nothing_left() as launchers:
        encoder = start_command(["encoder", "--job", str(job)], dict(os.environ), (None, None))
        launchers.add(encoder.pid)
        for program in (decoupled, twin):
            started = start_program(program, folder, samples, tmp_path / program.stem)
            launchers.add(started.pid)
            assert started.wait(100) == 0
        assert encoder.wait(60) == 0
    assert read_accounts(job).keys() == {"encoder.0", "backbone.0"}
    assert "complete; 3 of 3 steps" in (how_it_ended(job) or "")
    found, expected = (
        AutoModelForImageTextToText.from_pretrained(tmp_path / name).state_dict()
        for name in ("decouple", "decouple_plain")
    )
    assert largest_difference(found, expected)[0] <= 1e-5


@pytest.mark.deep
@pytest.mark.limit(300)
@pytest.mark.parametrize(
    "row",
    [
        TrainerRow(ranks=2, evaluates=True, resumed=True, **SGD),
        TrainerRow(kind="sft", mode="frozen", evaluates=True, **SGD),
    ],
    ids=str,
)
def test_a_trainer_equals_the_one_with_the_whole_model(row: TrainerRow, tmp_path: Path) -> None:
    with nothing_left():
        result = row.measure(tmp_path, steps=0)
    assert not misses(row, result), result


def test_arguments_that_cannot_be_used_are_refused(
    folder: Path, data: Path, tmp_path: Path
) -> None:
    def refused(match: str, trainer: Any, **others: Any) -> None:
        given = {"max_tokens": 100, "dataset": data / "train.jsonl", **others}
        with pytest.raises(ConfigError, match=match):
            decouple(trainer, tmp_path / "job", **given)

    def trainer(**others: Any) -> Any:
        return trainer_of("trainer", "strict", folder, data, tmp_path, **others)

    refused(r"^args\.save_only_model=True: .* call save_model$", trainer(save_only_model=True))
    refused("^held_out: args.eval_strategy is 'no'", trainer(), held_out=data / "train.jsonl")
    refused(r"^args\.auto_find_batch_size=True", trainer(auto_find_batch_size=True))
    evaluated = trainer(evaluates=True)
    evaluated.eval_dataset = [1, 2]
    refused(r"^eval_dataset \(list\): .* leave eval_strategy out$", evaluated)
    evaluated.compute_metrics = len
    refused("^compute_metrics: .* give the loss alone", evaluated, held_out=data / "train.jsonl")
    refused(r"^args\.eval_on_start=True", trainer(evaluates=True, eval_on_start=True))
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
