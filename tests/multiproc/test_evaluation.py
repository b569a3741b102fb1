"""Evaluations during a run: their losses, and that they leave the training as it is."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_ranks import failure, trained
from plain_processor import processor_of
from reference_loop import Samples
from support import Run, run_tree, write_tiny_data
from transformers import AutoModelForImageTextToText

from flowtrain.train.state.logs import read_log

SAMPLES = 6
STEPS = 4
LAYOUTS = {
    "strict": {"mode": "strict", "encoder_ranks": 2, "backbone_ranks": 2},
    "colocated": {"mode": "strict", "ranks": 2},
    "frozen": {"mode": "frozen", "encoder_ranks": 1, "backbone_ranks": 1},
    "bounded": {"mode": "bounded", "staleness": 2, "encoder_ranks": 1, "backbone_ranks": 1},
}


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples of one step, and a file with all of them twice."""
    folder = tmp_path_factory.mktemp("few")
    write_tiny_data(folder, samples=SAMPLES)
    lines = folder.joinpath("train.jsonl").read_text()
    folder.joinpath("twice.jsonl").write_text(2 * lines)
    return folder


def tree(run: Path, source: Path, layout: str, **sections: dict[str, Any]) -> dict[str, Any]:
    return run_tree(
        run,
        source,
        model={"dtype": "float64"},
        train={"steps": STEPS, "global_batch": SAMPLES},
        flow=LAYOUTS[layout],
        **sections,
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_loss_is_that_of_the_trained_weights_and_the_training_stays_the_same(
    layout: str, few: Path, tmp_path: Path
) -> None:
    steps = trained(tree(tmp_path / "alone", few, layout))
    # Two batches of the same samples as in a step, without a shuffle in another order.
    held_out = {"path": few / "twice.jsonl", "every": 1}
    trained(tree(tmp_path / "evaluated", few, layout, eval=held_out))
    for log in ("metrics.jsonl", "plan.log", "final/model.safetensors"):
        alone, evaluated = ((tmp_path / run / log).read_bytes() for run in ("alone", "evaluated"))
        assert alone == evaluated, log
    evaluations = read_log(tmp_path / "evaluated" / "eval.jsonl")
    assert [evaluation["step"] for evaluation in evaluations] == list(range(STEPS))
    if layout != "bounded":  # There, a step has the image features of older weights.
        for evaluation, following in zip(evaluations, steps[1:], strict=False):
            assert evaluation["target_tokens"] == 2 * following["target_tokens"]
            assert evaluation["loss"] == pytest.approx(following["loss"], rel=1e-12)


def test_ctrl_c_ends_an_evaluation_and_saves_its_step(few: Path, tmp_path: Path) -> None:
    lines = few.joinpath("train.jsonl").read_text()
    few.joinpath("many.jsonl").write_text(500 * lines)
    held_out = {"path": str(few / "many.jsonl"), "every": 1}
    config = tree(tmp_path / "run", few, "frozen", eval=held_out)
    config["flow"]["plan_ahead"] = 1
    run = Run(config)
    run.wait_for_steps(1)
    os.killpg(run.process.pid, signal.SIGINT)  # As a terminal sends it.
    code, errors = run.wait()
    steps = len(run.metrics())
    assert (code, 1 <= steps < STEPS) == (130, True), errors
    assert f"stopped by SIGINT after {steps} of {STEPS} steps, which are saved" in errors
    assert not run.folder.joinpath("eval.jsonl").exists()
    assert "evaluation after 1/4 steps  left out" in run.output


def test_a_held_out_sample_that_cannot_be_used_is_named(few: Path, tmp_path: Path) -> None:
    lines = few.joinpath("train.jsonl").read_text().splitlines(keepends=True)
    path = few / "bad.jsonl"
    path.write_text("".join([*lines[:2], "{}\n", *lines[2:]]))
    error = failure(tree(tmp_path / "run", few, "strict", eval={"path": path}))
    assert "bad.jsonl:3: " in error


@pytest.mark.parametrize("layout", [pytest.param("colocated", marks=pytest.mark.deep), "frozen"])
def test_answers_are_those_that_transformers_generates(
    layout: str, few: Path, tmp_path: Path
) -> None:
    held_out = {"path": few / "train.jsonl", "answers": SAMPLES - 1, "answer_tokens": 7}
    config = tree(tmp_path / "run", few, layout, eval=held_out, optim={"lr": 0.01})
    config["train"]["steps"] = 40  # Until the answers differ.
    trained(config)
    answers = read_log(tmp_path / "run" / "answers.jsonl")
    assert [answer["sample"] for answer in answers] == list(range(SAMPLES - 1))

    final = tmp_path / "run" / "final"
    model = AutoModelForImageTextToText.from_pretrained(final, dtype=torch.float64).eval()
    processor = processor_of(final)
    texts = set()
    samples = Samples(few / "train.jsonl", final)
    for answer in answers:
        sample = samples[answer["sample"]]
        targets = (sample["labels"][0] != -100).nonzero().flatten()
        start = int(targets[-1]) - int((targets.diff().flip(0) == 1).int().cumprod(0).sum())
        inputs = {
            name: value[:, :start] if value.shape == sample["input_ids"].shape else value
            for name, value in sample.items()
            if name != "labels"
        }
        ids = model.generate(**inputs, max_new_tokens=7, do_sample=False)[0, start:]
        decode = partial(processor.tokenizer.decode, skip_special_tokens=True)
        assert answer["answer"] == decode(ids)
        assert answer["expected"] == decode(sample["input_ids"][0, targets[targets >= start]])
        texts.add(answer["answer"])
    assert len(texts) > 1
