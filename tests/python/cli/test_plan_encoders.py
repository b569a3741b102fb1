"""`flowtrain plan` for a model with a vision tower and an audio tower."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pytest
import yaml
from support import run_tree

from flowtrain.cli.main import main
from flowtrain.plan.plan_file import read_plan
from tests.omni import thinker_config

PLAN = ["--model", "omni", "--cluster", "1x4xH100", "--workload", "both.jsonl"]


@pytest.fixture
def folder(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the configuration of a model, a run, and lengths with audio and without."""
    monkeypatch.chdir(tmp_path)
    thinker_config().save_pretrained("omni")
    tree = run_tree(
        tmp_path / "run",
        data,
        model={"config": "omni", "compute_dtype": "bfloat16"},
        train={"global_batch": 512, "microbatch_tokens": 8192},
        flow={"encoder_ranks": 1, "backbone_ranks": 3},
    )
    Path("run.yaml").write_text(yaml.safe_dump(tree))
    random = numpy.random.default_rng(0)
    rows = [{"tokens": 400, "visual_tokens": int(n)} for n in random.integers(100, 200, 64)]
    Path("images.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    audio = [{**row, "audio_tokens": 150, "clips": 2} for row in rows]
    Path("both.jsonl").write_text("".join(json.dumps(row) + "\n" for row in audio))
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_all_of_the_answer_has_both_encoders(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--fix", "mode=disaggregated", "--fix", "audio.tp=2", "--gpus", "2..4"]
    assert main(["plan", *PLAN, *words, "--sensitivity", "--explain", "--out", "plan.json"]) == 0
    printed = capsys.readouterr().out
    assert "several encoders (vision, audio)" in printed.split("why\n")[0]
    table = printed.split("GiB of a rank")[1].split("\n\n")[0]
    assert [line.split()[0] for line in table.splitlines()[1:]] == ["vision", "audio", "backbone"]
    # Two GPUs for audio, and one for each of the others.
    curve = printed.split("curve\n")[1]
    assert "no plan for batch=512 fits 2 H100" in curve and "audio tp=2" in curve
    assert "the smallest budget that fits is 4 H100" in curve
    assert "is the best for mean samples in" in " ".join(printed.split())
    assert "150 of audio, in 2.00 clips of equal size" in " ".join(printed.split())
    plan = read_plan(Path("plan.json")).plan
    assert [module.module for module in plan.modules] == ["vision", "audio", "backbone"]
    assert plan.gpus == 4 and plan.module("audio").layout.tp == 2


@pytest.mark.usefixtures("folder")
def test_samples_without_audio_leave_its_encoder_out(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*PLAN[:-1], "images.jsonl"]

    def best(*more: str) -> dict[str, Any]:
        assert main(["plan", *words, *more, "--json"]) == 0
        return dict(json.loads(capsys.readouterr().out)["best"])

    colocated = best("--fix", "mode=colocated")
    assert [module["module"] for module in colocated["modules"]] == ["vision", "backbone"]
    assert "several encoders (vision, audio)" in colocated["not_run"]
    assert main(["plan", *words, "--fix", "audio.tp=2"]) == 2
    assert "choose from mode, microbatches, vision.tp" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"tokens": 9, "visual_tokens": 5, "audio_tokens": 5}', "visual_tokens=5 and audio_tok"),
        ('{"tokens": 9, "audio_tokens": 5, "clips": 0}', "audio_tokens=5 with clips=0; give at le"),
        ('{"tokens": 9, "audio_tokens": 1.5}', "audio_tokens=1.5 must be a whole number"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_bad_lengths_of_audio_are_refused(
    capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    Path("both.jsonl").write_text(line)
    assert main(["plan", *PLAN]) == 2
    assert said in capsys.readouterr().err
