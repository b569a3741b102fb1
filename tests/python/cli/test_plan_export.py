"""`flowtrain plan --export`: the best plan that another program runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from flowtrain.cli.main import main
from flowtrain.plan.export import TARGETS
from flowtrain.plan.plan_file import read_plan

PLAN = ["plan", "--model", "model", "--cluster", "1x4xH100", "--workload", "lengths.jsonl"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a configuration, and lengths."""
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    shutil.copy(data / "model" / "config.json", "model")
    sample = {"tokens": 64, "visual_tokens": 16}
    Path("lengths.jsonl").write_text("".join(json.dumps(sample) + "\n" for _ in range(64)))


def test_flags_of_the_best_plan_are_printed_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--export", "torchtitan", "--fix", "backbone.pp=2"]
    files = ["--out", "plan.json", "--export-out", "flags.sh"]
    assert main([*PLAN, *words, *files]) == 0
    printed = capsys.readouterr().out
    assert "fixed: what torchtitan runs, backbone.pp=2\n" in printed
    assert "\nbest plan: prefix on " in printed
    plan = read_plan(Path("plan.json")).plan
    assert plan.modules[0].layout.pp == 2
    # The same plan, without a search.
    again = ["plan", "--from", "plan.json", "--export", "torchtitan"]
    assert main(again) == 0
    text = capsys.readouterr().out
    assert printed.endswith("\n\n" + text)
    assert main([*again, "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert tree["gpus"] == plan.gpus and tree["version"] in text
    stages = tree["flags"].index("--parallelism.module_fqns_per_model_part")
    assert tree["flags"][stages + 1].startswith("vision_encoder,tok_embeddings")
    assert tree["flags"][stages + 2].endswith("norm,lm_head")
    assert main([*PLAN, *words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["export"] == tree and answer["best"]["mode"] == "prefix"
    script = Path("flags.sh").read_text()
    assert f"  {tree['flags'][-1]}\n)\n" in script
    # What it cannot say is beside it, in all of them.
    for said in (text, script, " ".join(tree["missing"])):
        assert "the global batch in samples" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--export", "torchtitan", "--fix", "mode=colocated"], "torchtitan runs mode=prefix"),
        (["--export", "torchtitan", "--fix", "backbone.cp=2"], "torchtitan runs cp=1"),
        (["--export", "megatron", "--only-run"], "leave one of them out"),
        (["--export", "megatron", "--offload"], "states in host memory are not exported"),
        (["--export", "megatron", "--lora", "backbone=8"], "adapters of backbone are not exported"),
        (["--export", "megatron", "model.freeze=[projector]"], "projector is frozen"),
        (["--export", "megatron", "model.dtype=bfloat16"], "model.dtype=bfloat16 and"),
        (["--export-out", "flags.sh"], "give --export"),
    ],
)
def test_what_cannot_be_exported_is_an_error_that_says_why(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*PLAN, *words]) == 2
    assert said in capsys.readouterr().err


def test_a_plan_that_the_program_does_not_run_is_not_exported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*PLAN, "--only-run", "--out", "plan.json"]) == 0
    capsys.readouterr()
    assert main(["plan", "--from", "plan.json", "--export", "megatron"]) == 2
    error = capsys.readouterr().err
    assert "Megatron-LM 0.19.0 does not run this plan: mode=" in error
    assert "run `flowtrain plan --export megatron` without --from" in error
    assert main([*PLAN, "--from", "plan.json", "--export", "megatron"]) == 2
    assert "leave out model, cluster, workload" in capsys.readouterr().err
    for name in TARGETS:
        assert main(["plan", "--from", "none.json", "--export", name]) == 2
        assert "none.json" in capsys.readouterr().err
    assert main(PLAN[:3]) == 2
    assert "--cluster: give the cluster" in capsys.readouterr().err
