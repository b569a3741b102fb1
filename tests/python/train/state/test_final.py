"""A model is written whole, or not at all, and is that of its checkpoint."""

from __future__ import annotations

import json
import resource
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from transformers import AutoImageProcessor, AutoModelForImageTextToText

from flowtrain.config import ConfigError, RunConfig, dump, from_dict
from flowtrain.models.family import Part
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import SMALLEST, write_tiny_model
from flowtrain.train.export import export
from flowtrain.train.state import final
from flowtrain.train.state.final import write_final
from flowtrain.train.state.resume import FINGERPRINT, fingerprint


def make_checkpoint(config: RunConfig, seed: int) -> Path:
    """A checkpoint with the weights that another seed draws."""
    checkpoint = config.run / f"checkpoint-{seed}"
    parts: tuple[Part, ...] = ("encoder", "backbone")
    for part in parts:
        state = {"model": state_of(config, part, seed)}
        dcp.save(state, checkpoint_id=checkpoint / part, no_dist=True)
    (checkpoint / FINGERPRINT).write_text(json.dumps(fingerprint(config)))
    return checkpoint


def state_of(config: RunConfig, part: Part, seed: int) -> dict[str, Any]:
    """Weights of a part of the model that a seed draws."""
    model = family_for(config.model.folder).build(
        part, weights=None, seed=seed, dtype=torch.float32, device=torch.device("cpu")
    )
    return get_model_state_dict(model)


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """A run that has begun."""
    write_tiny_model(tmp_path / "model", SMALLEST)
    (tmp_path / "data.jsonl").write_text("{}\n")
    config = from_dict(
        {
            "run": tmp_path / "run",
            "model": {"config": tmp_path / "model"},
            "data": {"path": tmp_path / "data.jsonl"},
            "train": {"steps": 1},
        }
    )
    config.run.mkdir()
    return config


@pytest.mark.parametrize("limit_bytes", [0, 8192])
def test_a_full_disk_is_named_with_the_folder_and_keeps_no_part(
    limit_bytes: int, config: RunConfig
) -> None:
    checkpoint = make_checkpoint(config, 1)
    folder = config.run / "final"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        with pytest.raises(OSError, match=f"{folder}: .*File too large"):
            write_final(config, checkpoint)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not [*config.run.glob("final*")]


def test_a_final_model_replaces_the_one_before_only_when_it_is_whole(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = [make_checkpoint(config, seed) for seed in (1, 2)]
    write_final(config, checkpoints[0])
    (config.run / "final" / "stale.json").write_text("{}")
    before = (config.run / "final" / "model.safetensors").read_bytes()

    def cut_short(folder: Path, *_: Any) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(final, "save_final", cut_short)
        write_final(config, checkpoints[1])
    assert (config.run / "final" / "model.safetensors").read_bytes() == before

    change = write_final(config, checkpoints[1])
    assert min(change.values()) > 0
    assert not (config.run / "final" / "stale.json").exists()
    assert not list(config.run.glob("final.*"))
    loaded = AutoModelForImageTextToText.from_pretrained(config.run / "final").state_dict()
    wanted = state_of(config, "full", 2)
    assert all(torch.equal(value, loaded[name]) for name, value in wanted.items())


@pytest.mark.parametrize("when", ["before", "while it is copied"])
def test_a_final_model_has_no_file_that_changed_during_the_run(
    when: str, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = make_checkpoint(config, 1)
    template = config.model.folder / "chat_template.jinja"
    save_final = final.save_final

    def change_and_save(*arguments: Any) -> None:
        template.write_text("changed")
        save_final(*arguments)

    if when == "before":
        template.write_text("changed")
    else:
        monkeypatch.setattr(final, "save_final", change_and_save)
    with pytest.raises(
        ConfigError, match=r"files changed after the run started: chat_template\.jinja"
    ):
        write_final(config, checkpoint)
    assert not (config.run / "final").exists()


def test_an_export_is_the_model_of_the_named_checkpoint_of_a_run_that_was_moved(
    config: RunConfig, tmp_path: Path
) -> None:
    (config.run / "checkpoints").mkdir()
    for steps in (3, 20):
        folder = config.run / "checkpoints" / f"step-{steps:08d}"
        make_checkpoint(config, steps).rename(folder)
        (folder / "config.yaml").write_text(dump(config))
    moved = config.run.rename(tmp_path / "moved")

    with pytest.raises(ConfigError, match=r"--step=4: .*moved has no .*; choose 3 or 20 \("):
        export(moved, step=4)
    out = {steps: export(moved, step=steps) for steps in (3, None)}
    assert out[3]["folder"] == str(moved / "exports" / "step-00000003")
    assert (out[3]["steps"], out[None]["steps"]) == (3, 20)
    for steps, seed in ((3, 3), (None, 20)):
        loaded = AutoModelForImageTextToText.from_pretrained(out[steps]["folder"]).state_dict()
        wanted = state_of(config, "full", seed)
        assert all(torch.equal(value, loaded[name]) for name, value in wanted.items())
    rounded = export(moved, step=3, out=tmp_path / "rounded", dtype="bfloat16")["folder"]
    loaded = AutoModelForImageTextToText.from_pretrained(rounded, dtype="auto").state_dict()
    for name, value in state_of(config, "full", 3).items():
        assert torch.equal(value.bfloat16(), loaded[name])
    with pytest.raises(ConfigError, match=r"--out=.*step-00000003: it exists"):
        export(moved, step=3)
    with pytest.raises(ConfigError, match=r"--merge: .*moved has no adapters, .*leave --merge out"):
        export(moved, step=3, merged=True)


def test_an_export_takes_a_model_that_was_copied_or_moved_and_none_that_has_changed(
    config: RunConfig, tmp_path: Path
) -> None:
    folder = config.run / "checkpoints" / "step-00000003"
    folder.parent.mkdir()
    make_checkpoint(config, 3).rename(folder)
    (folder / "config.yaml").write_text(dump(config))
    copied = tmp_path / "copied"
    shutil.copytree(config.model.folder, copied)  # With other times.
    shutil.rmtree(config.model.folder)
    with pytest.raises(
        ConfigError, match=rf"{config.model.folder}: .* no longer there; .* --model"
    ):
        export(config.run)
    with pytest.raises(ConfigError, match=rf"{tmp_path}: it has no config\.json, .* --model"):
        export(config.run, model=tmp_path)
    export(config.run, model=copied, out=tmp_path / "moved")
    shutil.copytree(copied, config.model.folder, copy_function=shutil.copyfile)
    export(config.run, out=tmp_path / "copied back")
    assert (tmp_path / "moved" / "model.safetensors").read_bytes() == (
        tmp_path / "copied back" / "model.safetensors"
    ).read_bytes()
    (copied / "chat_template.jinja").write_text("changed")
    with pytest.raises(ConfigError, match=r"started: chat_template\.jinja; restore .* --model"):
        export(config.run, model=copied, out=tmp_path / "changed")


@pytest.mark.parametrize("form", ["size", "min_pixels", "processor_config"])
def test_the_image_processor_has_the_limits_of_the_run(
    form: str, config: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    """In each form in which released models have them; the lower limit is the processor's own."""
    path = config.model.folder / "preprocessor_config.json"
    fields = json.loads(path.read_text())
    least, most = (fields["size"][edge] for edge in ("shortest_edge", "longest_edge"))
    if form == "min_pixels":
        path.write_text(json.dumps({**fields, "min_pixels": least, "max_pixels": most}))
    elif form == "processor_config":
        both = {"processor_class": "Qwen3VLProcessor", "image_processor": fields}
        path.with_name("processor_config.json").write_text(json.dumps(both))
    limited = replace(config, data=replace(config.data, max_pixels=most // 4))
    write_final(limited, make_checkpoint(config, 7))
    size = AutoImageProcessor.from_pretrained(config.run / "final").size
    assert (size["shortest_edge"], size["longest_edge"]) == (least, most // 4)
    assert f"scaled to {least} to {most // 4} pixels, as in training" in capsys.readouterr().err
