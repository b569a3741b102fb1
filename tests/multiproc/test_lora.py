"""Runs that train adapters: what is saved, that a resume is equal, and what PEFT makes of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_ranks import failure, trained
from reference_loop import Samples, loss_sum
from safetensors.torch import load_file, save_file
from support import run_tree, write_tiny_data
from torch.distributed.checkpoint import FileSystemReader
from transformers import AutoConfig, AutoModelForImageTextToText

from flowtrain.config import ConfigError
from flowtrain.train.export import export
from flowtrain.train.state.logs import read_log

SAMPLES = 6
peft = pytest.importorskip("peft")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples, and a model with weights."""
    folder = tmp_path_factory.mktemp("source")
    write_tiny_data(folder, samples=SAMPLES)
    torch.manual_seed(5)  # Not `train.seed`, from which a run would draw other weights.
    model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder / "model"))
    model.save_pretrained(folder / "model")
    return folder


def tree(run: Path, source: Path, **changes: Any) -> dict[str, Any]:
    sections: dict[str, Any] = {
        "model": {"config": None, "path": str(source / "model")},
        "train": {"steps": 6, "global_batch": 5},
        "lora": {
            "encoder": {"rank": 2, "targets": ["qkv", "linear_fc2"]},
            "backbone": {"rank": 4, "alpha": 16},
            "dropout": 0.2,
        },
        "optim": {"lr": 1e-2, "groups": [{"match": "*.lora_B.*", "lr": 2e-2}]},
        "flow": {"ranks": 2, "mode": "strict"},
        "parallel": {"backbone": {"sharding": "full"}},
        "checkpoint": {"every": 2},
        "eval": {"path": str(source / "train.jsonl"), "every": 3},
    }
    return run_tree(run, source, **{**sections, **changes})


@pytest.fixture(scope="module")
def run(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora") / "run"
    trained(tree(folder, source))
    return folder


def test_a_resumed_run_with_adapters_is_equal_and_other_adapters_are_refused(
    source: Path, run: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again"
    shutil.copytree(run, again)
    shutil.rmtree(again / "final")
    shutil.rmtree(again / "checkpoints" / "step-00000006")
    other = {"encoder": {"rank": 2, "targets": ["qkv", "linear_fc2"]}, "backbone": {"rank": 4}}
    error = failure(tree(again, source, lora=other), resume=True)
    assert "lora.backbone.alpha=16 (now 8), lora.dropout=0.2 (now 0.0)" in error
    copied = tmp_path / "source"
    shutil.copytree(source, copied)
    weights = load_file(copied / "model" / "model.safetensors")
    weights["model.language_model.norm.weight"] *= 2
    save_file(weights, copied / "model" / "model.safetensors", {"format": "pt"})
    moved = {"config": None, "path": str(copied / "model")}
    error = failure(tree(again, source, model=moved), resume=True)
    assert "the contents of the model's model.safetensors;" in error
    with pytest.raises(ConfigError, match=r"changed after the run started: model\.safetensors; "):
        export(again, model=copied / "model", merged=True)

    # On a CPU its states are where they were.
    offloaded = tree(again, source)
    offloaded["optim"]["offload"] = True
    trained(offloaded, resume=True)
    for file in ("metrics.jsonl", "eval.jsonl", "final/adapter_model.safetensors"):
        assert (run / file).read_bytes() == (again / file).read_bytes(), file


def test_a_checkpoint_has_what_trains_and_its_moments(run: Path) -> None:
    for side, parts in (("encoder", (".lora_", "merger")), ("backbone", (".lora_",))):
        folder = run / "checkpoints" / "step-00000006" / side
        names = set(FileSystemReader(folder).read_metadata().state_dict_metadata)
        assert names
        assert all(any(part in name for part in parts) for name in names), names
        assert any(name.startswith("optimizer.") for name in names)


# PEFT calls what transformers will remove.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
def test_peft_and_the_merged_model_have_the_loss_of_the_run(source: Path, run: Path) -> None:
    found = read_log(run / "eval.jsonl")[-1]
    assert found["loss"] < 0.95 * read_log(run / "metrics.jsonl")[0]["loss"]
    data = Samples(source / "train.jsonl", source / "model")
    samples = [data[number] for number in range(SAMPLES)]
    base = AutoModelForImageTextToText.from_pretrained(source / "model", dtype=torch.float32)
    merged = export(run, merged=True)
    models = {
        "adapters": peft.PeftModel.from_pretrained(base, run / "final"),
        "merged": AutoModelForImageTextToText.from_pretrained(merged["folder"]),
    }
    for name, model in models.items():
        with torch.no_grad():
            total = sum(float(loss_sum(model.eval(), s, torch.float32)) for s in samples)
        assert total / found["target_tokens"] == pytest.approx(found["loss"], rel=1e-5), name
    assert min(merged["encoder_weight_change"], merged["backbone_weight_change"]) > 0.01
    assert merged["folder"].endswith("step-00000006-merged")
