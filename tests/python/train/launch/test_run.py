from __future__ import annotations

import json
import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support import run_tree, write_tiny_data

from flowtrain.cli.demo import packing_line
from flowtrain.config import ConfigError, RunConfig, from_dict
from flowtrain.data import DataError
from flowtrain.models import ModelError
from flowtrain.models.registry import family_for
from flowtrain.train.assembly.reads import reading_of
from flowtrain.train.demo import demo_config
from flowtrain.train.launch import run
from flowtrain.train.launch.errors import RunFailed
from flowtrain.train.launch.run import packing_means, train, with_steps
from flowtrain.train.ranks.device import DeviceError
from flowtrain.train.state.choice import read_choice
from flowtrain.train.state.run_folder import lock_run


def packing(gap: float, *ratios: float) -> dict[str, object]:
    names = ("dist_ratio", "encoder_dist_ratio", "pad_ratio")
    packed, arrival = (dict(zip(names, r, strict=True)) for r in (ratios[:3], ratios[3:]))
    return {"bound": 1.0, "gap": gap, "packed": packed, "arrival": arrival}


def test_the_summary_has_the_mean_effect_of_packing_over_all_steps() -> None:
    steps = [packing(0.25, 0.0, 0.125, 0.0, 0.5, 0.25, 0.75), packing(0.75, *(6 * [0.25]))]
    means = packing_means(steps)
    assert means == {
        "packing_gap": 0.5,
        "dist_ratio_before": 0.375,
        "encoder_dist_ratio_before": 0.25,
        "pad_ratio_before": 0.5,
        "dist_ratio_after": 0.125,
        "encoder_dist_ratio_after": 0.1875,
        "pad_ratio_after": 0.125,
    }
    ranks = {"layout": "decoupled", "backbone_ranks": 2, "encoder_ranks": 1}
    assert packing_line({**ranks, **means}) == (
        "packing, arrival order -> packed: pad ratio 50.0% -> 12.5%, "
        "dist ratio of 2 backbone rank(s) 37.5% -> 12.5%, of 1 encoder rank(s) 25.0% -> 18.8%"
    )


def test_the_demo_runs_in_a_folder_of_any_name(tmp_path: Path) -> None:
    out = tmp_path / "a #1: b"
    assert demo_config(out).run == out / "run"


def leave_checkpoint(config: RunConfig, *_: Any, steps: int, **__: Any) -> None:
    """Write the checkpoint of ranks that have trained a number of steps."""
    checkpoint = config.run / "checkpoints" / f"step-{steps:08d}"
    checkpoint.mkdir(parents=True)
    mark = {"step": steps - 1, "cursor": 0, "stepped": {}}
    checkpoint.joinpath("mark.json").write_text(json.dumps(mark))


@pytest.mark.parametrize("steps", [3, 5])
def test_a_final_model_comes_only_from_the_last_step(steps: int, tmp_path: Path) -> None:
    write_tiny_data(tmp_path / "data", samples=1)
    config = from_dict(run_tree(tmp_path / "run", tmp_path / "data"))
    with pytest.raises(RunFailed, match=f"has {steps} steps, not train.steps=4"):
        train(config, run_ranks=partial(leave_checkpoint, steps=steps))
    assert not (config.run / "final").exists()


def test_the_folder_of_a_run_keeps_why_it_has_its_layout(tmp_path: Path) -> None:
    write_tiny_data(tmp_path / "data", samples=2)
    config = from_dict(run_tree(tmp_path / "run", tmp_path / "data", flow={"layout": "auto"}))
    plan = tmp_path / "plan.json"
    plan.write_text("a plan")

    def fail(config: RunConfig, *_: Any, **__: Any) -> None:
        raise RunFailed(f"on {config.flow.chosen}")

    with pytest.raises(RunFailed) as failed:
        train(config, plan=plan, run_ranks=fail)
    ranks = str(failed.value).removeprefix("on ")
    chosen = read_choice(config.run, ranks=ranks)
    assert chosen is not None
    assert chosen.layout.startswith(ranks)
    assert 0 < chosen.step_s <= (chosen.next_best_s or math.inf)
    assert read_choice(config.run, ranks="colocated 99") is None
    assert config.run.joinpath("plan.json").read_text() == "a plan"


def test_ranks_read_only_the_data_file_that_the_launcher_hashed(tmp_path: Path) -> None:
    write_tiny_data(tmp_path / "data", samples=2)
    config = from_dict(run_tree(tmp_path / "run", tmp_path / "data"))
    os.utime(config.data.path, (1, 1))
    first, second = config.data.path.read_text().splitlines(keepends=True)

    def replace_data(config: RunConfig, *_: Any, **__: Any) -> None:
        assert len(reading_of(config)()) == 2
        other = tmp_path / "other.jsonl"
        other.write_text(second + first)
        other.replace(config.data.path)
        reading_of(config)()

    with pytest.raises(DataError, match=r"train\.jsonl: the data changed during the run"):
        train(config, run_ranks=replace_data)


def test_ranks_load_only_the_model_files_that_the_launcher_hashed(tmp_path: Path) -> None:
    write_tiny_data(tmp_path / "data", samples=1)
    config = from_dict(run_tree(tmp_path / "run", tmp_path / "data"))
    template = config.model.folder / "chat_template.jinja"

    def replace_template(config: RunConfig, *_: Any, **__: Any) -> None:
        reading_of(config)()
        template.write_text(template.read_text() + "\n")
        config.model.folder.joinpath("added_tokens.json").write_text("{}")
        reading_of(config)()

    with pytest.raises(ConfigError, match=r"started: added_tokens\.json, chat_template\.jinja"):
        train(config, run_ranks=replace_template)


def test_a_summary_is_json_when_a_number_is_not_finite_and_says_what_was_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny_data(tmp_path / "data", samples=1)
    config = from_dict(run_tree(tmp_path / "run", tmp_path / "data"))
    monkeypatch.setattr(run, "write_final", lambda *_: {"encoder_weight_change": math.nan})
    left_out = {"skipped_samples": 2, "dropped_samples": 0, "truncated_samples": 0}
    monkeypatch.setattr(run, "_summary", lambda *_: {**left_out, "loss": None})
    summary = train(config, run_ranks=partial(leave_checkpoint, steps=4))
    assert summary["encoder_weight_change"] is None
    text = (config.run / "summary.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == summary
    assert "flowtrain: samples of this run: 2 skipped; " in capsys.readouterr().err


def test_a_final_model_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_data(tmp_path / "data", samples=1)
    config = from_dict(run_tree(tmp_path / "run", tmp_path / "data"))

    def fill_disk(*_: Any) -> None:
        raise OSError(f"{config.run / 'final'}: No space left on device")

    monkeypatch.setattr(run, "write_final", fill_disk)
    with pytest.raises(RunFailed, match=r"run/final: No space left on device; every step is tr"):
        train(config, run_ranks=partial(leave_checkpoint, steps=4))


def test_weights_that_ranks_cannot_read_are_refused_before_one_starts(tmp_path: Path) -> None:
    write_tiny_data(tmp_path / "data", samples=1)
    folder = tmp_path / "data" / "model"
    model = {"config": None, "path": str(folder)}
    started: list[bool] = []

    def begin(sharding: str) -> None:
        parallel = {"backbone": {"sharding": sharding}}
        tree = run_tree(
            tmp_path / "run", tmp_path / "data", model=model, parallel=parallel, flow={"ranks": 2}
        )
        train(from_dict(tree), run_ranks=lambda *_, **__: started.append(True))

    family = family_for(folder)
    full: Any = family.build(
        "full", weights=None, seed=7, dtype=torch.float32, device=torch.device("cpu")
    )
    weights = full.state_dict()
    torch.save(weights, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin: .* in parts, .* to replicated"):
        begin("full")
    with pytest.raises(AssertionError):  # There is no checkpoint, but ranks have started.
        begin("replicated")
    assert started == [True]
    older = {name.replace("self_attn.o_proj", "attn.out"): w for name, w in weights.items()}
    full.save_pretrained(folder, state_dict=older)
    told = r"3 weights .* missing, .*0\.self_attn\.o_proj.*, and 3 are unknown to it, .*attn\.out"
    for sharding in ("replicated", "full"):
        with pytest.raises(ModelError, match=told):
            begin(sharding)
    assert started == [True]


@pytest.mark.parametrize("hook", ["nope", "os:nope", "nope:fault", ":"])
def test_a_hook_that_does_not_exist_is_refused_before_a_rank_starts(
    hook: str, tmp_path: Path
) -> None:
    write_tiny_data(tmp_path / "data", samples=1)
    config = from_dict(run_tree(tmp_path / "run", tmp_path / "data", debug={"fault": hook}))
    with pytest.raises(ConfigError, match=rf"debug\.fault={hook}: .*; write module:function"):
        train(config, run_ranks=pytest.fail)


def test_a_folder_that_holds_a_run_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    config = from_dict(run_tree(tmp_path / "run", tmp_path / "no-data"))
    config.run.mkdir()
    config.run.joinpath("plan.log").touch()
    with pytest.raises(ConfigError, match="it holds a run already"):
        train(config, run_ranks=pytest.fail)
    with lock_run(config.run), pytest.raises(ConfigError, match="another launcher is training"):
        train(config, run_ranks=pytest.fail)


def test_a_missing_device_is_named_before_a_rank_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = from_dict(run_tree(tmp_path / "run", tmp_path, model={"device": "cuda"}))
    with pytest.raises(DeviceError, match="torch finds no CUDA device; run `flowtrain doctor`"):
        train(config, run_ranks=pytest.fail)


def test_epochs_become_steps_that_draw_all_of_their_samples(tmp_path: Path) -> None:
    tree = run_tree(tmp_path / "run", tmp_path, train={"global_batch": 4, "epochs": 1.5})
    del tree["train"]["steps"]
    config = with_steps(from_dict(tree), epoch_draws=10)
    assert (config.train.steps, config.train.epochs) == (4, 0)
    with pytest.raises(ConfigError, match=r"warmup_steps=9: it must be less than train\.steps=4"):
        with_steps(from_dict({**tree, "optim": {"warmup_steps": 9}}), epoch_draws=10)


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_a_model_with_dropout_is_named_as_its_layouts_differ(
    rate: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny_data(tmp_path / "data", samples=1)
    config = from_dict(run_tree(tmp_path / "run", tmp_path / "data"))
    path = config.model.folder / "config.json"
    tree = json.loads(path.read_text())
    tree["text_config"]["attention_dropout"] = rate
    path.write_text(json.dumps(tree))
    with pytest.raises(RunFailed):
        train(config, run_ranks=partial(leave_checkpoint, steps=3))
    told = "the model has dropout (text_config.attention_dropout=0.1)" in capsys.readouterr().err
    assert told == (rate > 0)
