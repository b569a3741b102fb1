"""The files in `examples/finetune` train small models from folders with weights."""

from __future__ import annotations

import dataclasses
import math
import re
import runpy
import shlex
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from cost.released import qwen2_5_vl
from forked_ranks import forked_ranks
from support import one_thread
from transformers import AutoConfig, AutoModelForImageTextToText

from flowtrain.cli.main import main
from flowtrain.config import load
from flowtrain.data.digits import write_digits
from flowtrain.models.registry import FAMILIES, family_for
from flowtrain.models.tiny import SMALLEST
from flowtrain.train.launch import run
from flowtrain.train.launch.run import train
from flowtrain.train.state import logs

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDER = EXAMPLES / "finetune"
README = FOLDER.joinpath("README.md").read_text()
SEED = 5  # Not `train.seed`, from which a run would draw other weights.


def cpu_trial() -> list[str]:
    """Overrides of the command in the README that trains on the CPU, without the run folder."""
    (command,) = re.findall(r"^flowtrain train \S+ (run=(?:.*\\\n)*.*)$", README, re.MULTILINE)
    _, *overrides = shlex.split(command.replace("\\\n", ""))
    return overrides


def write_weights(folder: Path) -> None:
    """Write weights in bfloat16, as in the released folders."""
    torch.manual_seed(SEED)
    model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder))
    model.to(torch.bfloat16).save_pretrained(folder)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    model, found = AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not found["missing_keys"] and not found["unexpected_keys"], found
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def source(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples, and a model with weights; embeddings are tied as in the released model."""
    folder = tmp_path_factory.mktemp(family)
    sizes = dataclasses.replace(SMALLEST, tied=family != "llava")
    write_digits(folder, train=4, heldout=0, sizes=sizes, family=family)
    write_weights(folder / "model")
    return folder


@pytest.mark.parametrize("mode", ["frozen", pytest.param("strict", marks=pytest.mark.deep)])
def test_an_example_trains_the_weights_of_its_folder(
    family: str, mode: str, source: Path, tmp_path: Path
) -> None:
    config = load(
        FOLDER / f"{family}.yaml",
        [
            f"run={tmp_path / 'run'}",
            f"model.path={source / 'model'}",
            f"data.path={source / 'train.jsonl'}",
            f"flow.mode={mode}",
            *cpu_trial(),
        ],
    )
    train(config, run_ranks=forked_ranks)

    losses = [step["loss"] for step in logs.read_log(config.run / logs.METRICS)]
    assert len(losses) == config.train.steps == 2
    assert all(math.isfinite(loss) for loss in losses)
    before, after = weights(source / "model"), weights(config.run / "final")
    assert before.keys() == after.keys()
    part_of = family_for(source / "model").part_of
    changes = dict.fromkeys(("encoder", "projector", "backbone"), 0.0)
    for name, weight in after.items():
        change = float((weight - before[name]).abs().max())
        changes[part_of(name)] = max(changes[part_of(name)], change)
    # The first updates of AdamW are at most the learning rate, up to rounding; weights that did not
    # come from the folder would differ by far more.
    limit = 1.1 * config.train.steps * config.optim.lr
    assert all(change <= limit for change in changes.values()), changes
    trained = {part for part, change in changes.items() if change > 0}
    assert trained == ({"projector", "backbone"} if mode == "frozen" else set(changes))


def test_every_family_has_an_example_that_the_readme_lists() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(FAMILIES)
    for family in FAMILIES:
        assert f"[`{family}.yaml`]({family}.yaml)" in README


# PEFT calls what transformers will remove.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_adapters_of_a_small_model_are_trained_and_loaded_with_peft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("peft")
    program = str(EXAMPLES / "lora" / "train_small.py")
    monkeypatch.setattr(sys, "argv", [program, str(tmp_path)])
    monkeypatch.setattr(run, "train", partial(train, run_ranks=forked_ranks))
    with one_thread():
        runpy.run_path(program, run_name="__main__")
    printed = capsys.readouterr().out
    found = re.search(
        r"^(\d+) parameters of adapters; loss (\S+) before, (\S+) after\n\Z", printed, re.M
    )
    assert found is not None, printed
    assert int(found[1]) > 10_000
    assert float(found[3]) < float(found[2]) - 0.1


def test_the_plan_of_the_7b_model_is_one_that_flowtrain_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = EXAMPLES.joinpath("lora", "README.md").read_text()
    planned, trained = (
        shlex.split(line) for line in re.findall(r"^flowtrain (.*)$", readme, re.M)[:2]
    )
    qwen2_5_vl().save_pretrained(tmp_path / "model")
    for words in (planned, trained):
        words[words.index("qwen2_5_vl_7b.yaml")] = str(EXAMPLES / "lora" / "qwen2_5_vl_7b.yaml")
        words.append(f"model.path={tmp_path / 'model'}")
    monkeypatch.chdir(tmp_path)
    assert main(planned) == 0
    said = capsys.readouterr().out
    assert "trains backbone (LoRA of rank 16) in bfloat16" in said
    assert "FlowTrain  runs it" in said
    assert main([*trained, "--print-config"]) == 0
