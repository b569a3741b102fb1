"""`flowtrain plan` for models that it describes and that no family trains."""

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


@pytest.fixture(
    params=[(moe_config, "qwen3_vl_moe"), (thinker_config, "qwen2_5_omni_thinker")],
    ids=["experts", "two encoders"],
)
def kind(
    request: pytest.FixtureRequest, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """`model_type` of a model, in a folder with its configuration, a run, and lengths."""
    monkeypatch.chdir(tmp_path)
    config, model_type = request.param
    config().save_pretrained("model")
    tree = run_tree(
        tmp_path / "run",
        data,
        model={"config": "model", "dtype": "bfloat16"},
        train={"global_batch": 64, "microbatch_tokens": 8192},
    )
    Path("run.yaml").write_text(yaml.safe_dump(tree))
    sample = {"tokens": 400, "visual_tokens": 200}
    Path("lengths.jsonl").write_text("".join(json.dumps(sample) + "\n" for _ in range(64)))
    return str(model_type)


def test_its_plans_say_so_and_a_run_refuses_them(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def said() -> str:
        read = capsys.readouterr()
        return " ".join((read.out + read.err).split())

    # Of a family, FlowTrain would run this layout.
    layout = ["mode=colocated", "backbone.sharding=replicated", "microbatches=1"]
    words = [word for fix in layout for word in ("--fix", fix)]
    assert main(["plan", *PLAN, *words, "--out", "plan.json"]) == 0
    assert f"FlowTrain does not run model_type={kind} (no family trains it)" in said()
    plan = read_plan(Path("plan.json")).plan
    assert plan.not_run[0] == f"model_type={kind} (no family trains it)"
    assert main(["train", "run.yaml", "--plan", "plan.json", "--print-config"]) == 2
    refused = said()
    assert f"model_type={kind} has no family, so that no run can train with this plan" in refused
    assert "docs/families.md" in refused
    for option in (["--only-run"], ["--check", "run.yaml"]):
        assert main(["plan", *PLAN, *option]) == 2
        assert f"{option[0]}: model_type={kind} has no family" in said()
