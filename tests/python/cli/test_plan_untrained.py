"""`flowtrain plan` for a model that no family trains, and for one with experts, which train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import run_tree
from transformers import Qwen3VLMoeConfig

from flowtrain.cli.main import main
from flowtrain.plan.plan_file import read_plan
from tests.omni import thinker_config

PLAN = ["run.yaml", "--cluster", "1x4xH100", "--workload", "lengths.jsonl"]


def moe_config() -> Any:
    """A small Qwen3-VL with experts."""
    return Qwen3VLMoeConfig(
        text_config={
            "vocab_size": 100,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "mrope_section": [4, 2, 2],
            },
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "patch_size": 4,
            "out_hidden_size": 64,
            "deepstack_visual_indexes": [0],
        },
    )


@pytest.fixture
def run(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run, of a model whose folder is still to be made, and lengths."""
    monkeypatch.chdir(tmp_path)
    tree = run_tree(
        tmp_path / "run",
        data,
        model={"config": "model", "compute_dtype": "bfloat16"},
        train={"global_batch": 64, "microbatch_tokens": 8192},
    )
    Path("run.yaml").write_text(yaml.safe_dump(tree))
    sample = {"tokens": 400, "visual_tokens": 200}
    Path("lengths.jsonl").write_text("".join(json.dumps(sample) + "\n" for _ in range(64)))


def said(capsys: pytest.CaptureFixture[str]) -> str:
    read = capsys.readouterr()
    return " ".join((read.out + read.err).split())


@pytest.mark.usefixtures("run")
def test_plans_of_a_model_with_experts_run_without_expert_parallelism(
    capsys: pytest.CaptureFixture[str],
) -> None:
    moe_config().save_pretrained("model")
    assert main(["plan", *PLAN, "--only-run"]) == 0
    assert "FlowTrain runs it" in said(capsys)
    words = [w for fix in ("mode=colocated", "backbone.ep=2") for w in ("--fix", fix)]
    assert main(["plan", *PLAN, *words]) == 0
    assert "FlowTrain does not run backbone: ep=2" in said(capsys)


@pytest.mark.usefixtures("run")
def test_plans_of_an_untrained_model_say_so_and_a_run_refuses_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kind = "qwen2_5_omni_thinker"
    thinker_config().save_pretrained("model")
    # Of a family, FlowTrain would run this layout.
    layout = ["mode=colocated", "backbone.sharding=replicated", "microbatches=1"]
    words = [word for fix in layout for word in ("--fix", fix)]
    assert main(["plan", *PLAN, *words, "--out", "plan.json"]) == 0
    assert f"FlowTrain does not run model_type={kind} (no family trains it)" in said(capsys)
    plan = read_plan(Path("plan.json")).plan
    assert plan.not_run[0] == f"model_type={kind} (no family trains it)"
    assert main(["train", "run.yaml", "--plan", "plan.json", "--print-config"]) == 2
    refused = said(capsys)
    assert f"model_type={kind} has no family, so that no run can train with this plan" in refused
    assert "docs/families.md" in refused
    for option in (["--only-run"], ["--check", "run.yaml"]):
        assert main(["plan", *PLAN, *option]) == 2
        assert f"{option[0]}: model_type={kind} has no family" in said(capsys)
