from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from report_pages import Page
from support import one_thread, run_tree

from flowtrain.cli.main import main
from flowtrain.config import load
from flowtrain.config.layout import RankLayout
from flowtrain.plan.plan_file import read_plan
from flowtrain.train.launch import layout as launch_layout
from flowtrain.train.launch.layout import with_layout
from flowtrain.train.profile.main import main as measure


@pytest.fixture
def folder(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model of which only the configuration is there, a run, and lengths."""
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    shutil.copy(data / "model" / "config.json", "model")
    tree = run_tree(
        tmp_path / "run",
        data,
        model={"config": "model", "compute_dtype": "bfloat16"},
        train={"global_batch": 512, "microbatch_tokens": 8192},
        flow={"item_tokens": 1024, "layout": "auto"},
    )
    Path("run.yaml").write_text(yaml.safe_dump(tree))
    sample = {"tokens": 64, "visual_tokens": 16}
    Path("lengths.jsonl").write_text("".join(json.dumps(sample) + "\n" for _ in range(64)))
    return tmp_path


PLAN = ["--cluster", "1x2xH100", "--workload", "lengths.jsonl"]


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["plan", *PLAN, *words, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


@pytest.mark.usefixtures("folder")
def test_a_run_trains_with_the_plan_that_was_made_for_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # The times of the small model in the two modes differ by less than 1 %.
    runs = ["--only-run", "--fix", "mode=colocated"]
    written = ["--out", "plan.json", "--plot", "plan.html"]
    assert main(["plan", "run.yaml", *PLAN, *runs, *written]) == 0
    assert "Memory of a rank" in Page.read(Path("plan.html")).figures
    printed = capsys.readouterr().out
    assert "model on 1x2xH100, 2 GPUs; 512 samples a step from lengths\n" in printed
    assert "microbatches of up to 8192 tokens" in printed
    assert "FlowTrain  runs it" in printed
    # Such a small model takes longer to launch than to compute.
    assert "  warning    the model is small for this GPU: a microbatch computes for " in printed
    plan = read_plan(Path("plan.json")).plan
    # The parts of a step are its time, to their digits.
    found = re.search(r"  mean step +(\S+) ms: (.*)\n", printed)
    assert found is not None
    parts = [float(part.split()[-1]) for part in found[2].split(", ")]
    assert sum(parts) == pytest.approx(float(found[1]), rel=0.02)
    assert float(found[1]) == pytest.approx(1e3 * plan.step_s, rel=0.02)
    # A plan for several hosts says so, and how its run starts.
    larger = ["--cluster", "3x2xH100", *PLAN[2:]]
    assert main(["plan", "run.yaml", *larger, *runs, "--out", "larger.json"]) == 0
    found = capsys.readouterr().out
    assert "  launch     flowtrain host RUN.yaml " in found
    assert "a torchrun for colocated" in found
    assert main(["train", "run.yaml", "--plan", "larger.json", "--print-config"]) == 2
    assert ": the plan is for several hosts" in capsys.readouterr().err
    assert main(["train", "run.yaml", "--plan", "plan.json", "--print-config"]) == 0
    printed, said = capsys.readouterr()
    flow = yaml.safe_load(printed)["flow"]
    assert plan.mode == "colocated" and flow["ranks"] == plan.gpus == 2
    assert said == (
        "flowtrain: plan.json: not checked: the samples, since the plan is for those of "
        "lengths.jsonl; the GPUs (model.device=cpu)\n"
    )
    # What a file or a word gives is given, whatever its value.
    own = "parallel.backbone.recompute_layers=null"
    sharding = plan.modules[-1].layout.sharding
    assert sharding != "replicated"
    for word, refused in ((own, False), ("parallel.backbone.sharding=replicated", True)):
        words = ["train", "run.yaml", word, "--plan", "plan.json", "--print-config"]
        assert main(words) == (2 if refused else 0)
    assert f"backbone.sharding: replicated in the run, and {sharding} in the plan" in (
        capsys.readouterr().err
    )
    # States in host memory are a choice of the plan, which the run gets from it.
    assert main(["plan", "run.yaml", *PLAN, *runs, "--offload", "--out", "host.json"]) == 0
    printed = capsys.readouterr().out
    assert ", states in host memory; " in printed and "\nhost memory: " in printed
    words = ["train", "run.yaml", "--plan", "host.json", "--print-config"]
    assert main(words) == 0
    assert yaml.safe_load(capsys.readouterr().out)["optim"]["offload"] is True
    assert main([*words, "optim.offload=false"]) == 2
    assert "optim.offload: False in the run, and True in the plan" in capsys.readouterr().err
    # The lengths are others now.
    with Path("lengths.jsonl").open("a") as lengths:
        lengths.write("{}\n")
    assert main(["train", "run.yaml", "--plan", "plan.json", "--print-config"]) == 2
    assert "lengths.jsonl was changed after the plan was made; run" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_a_plan_has_its_price_in_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    price = ["--gpu-hour", "2.5"]
    found = asked(capsys, "run.yaml", "train.steps=1000", *price, "--gpus", "1..2")
    best, money = found["best"], found["money"]
    assert money["gpu_hour"] == found["question"]["gpu_hour"] == 2.5
    # All GPUs are paid for, also if the plan leaves one idle.
    assert money["step"] == pytest.approx(best["best_s"] / 3600 * 2 * 2.5)
    assert money["million_tokens"] == pytest.approx(money["step"] / (512 * 64) * 1e6)
    assert money["run"] == pytest.approx(1000 * money["step"])
    per_tokens = f"{money['million_tokens']:.4g}"
    words = ["run.yaml", *PLAN, "train.steps=1000", *price, "--gpus", "1..2"]
    assert main(["plan", *words]) == 0
    printed = capsys.readouterr().out
    assert f"  money      {per_tokens} per 1e6 tokens, {money['step']:.4g} a step, " in printed
    assert f"{money['run']:,.2f} for the 1,000 steps of the run, at 2.5 a GPU hour\n" in printed
    head, _, last = printed.partition("\ncurve\n")[2].splitlines()[:3]
    assert "money/1e6" in head.split() and per_tokens in last.split()
    # A model alone states no steps.
    assert asked(capsys, "--model", "model", *price)["money"]["run"] is None


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("price", "cluster", "said"),
    [
        (
            "0",
            "1x2xH100",
            "--gpu-hour 0: the price of an hour of a GPU must be above 0, and finite",
        ),
        ("nan", "1x2xH100", "--gpu-hour nan: the price of an hour"),
        ("2", "1x8xH100+1x8xH200", "cluster '1x8xH100+1x8xH200' has GPUs of several types"),
    ],
)
def test_a_price_that_cannot_be_used_is_an_error(
    price: str, cluster: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--cluster", cluster, "--workload", "lengths.jsonl", "--gpu-hour", price]
    assert main(["plan", "--model", "model", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_a_model_folder_is_enough_and_fixed_values_hold(
    capsys: pytest.CaptureFixture[str],
) -> None:
    free = asked(capsys, "--model", "model")
    assert free["money"] is None
    fixed = asked(capsys, "--model", "model", "--fix", "backbone.tp=2", "--fix", "microbatches=4")
    assert fixed["question"]["fixed"] == ["backbone.tp=2", "microbatches=4"]
    assert len(fixed["plans"]) > 1
    for plan in fixed["plans"]:
        assert plan["modules"][-1]["layout"]["tp"] == 2
        assert plan["microbatches"] == 4
    assert fixed["best"]["step_s"] > free["best"]["step_s"]
    # The planner chooses the tokens of a microbatch, unless a word gives them.
    assert free["question"]["run"]["microbatch_tokens"] == free["best"]["microbatch_tokens"]
    given = asked(capsys, "--model", "model", "train.microbatch_tokens=9000")
    assert {plan["microbatch_tokens"] for plan in given["plans"]} == {9000}


@pytest.mark.usefixtures("folder")
def test_own_layouts_budgets_and_efficiencies_stand_beside_the_best(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["train", "run.yaml", "flow.encoder_ranks=1", "--print-config"]) == 0
    Path("mine.yaml").write_text(capsys.readouterr().out)
    beside = ["--check", "mine.yaml", "--gpus", "1..2", "--sensitivity"]
    found = asked(capsys, "run.yaml", *beside)
    mine = found["checked"]["plan"]
    assert (mine["mode"], mine["gpus"]) == ("disaggregated", 2)
    assert [module["layout"]["dp"] for module in mine["modules"]] == [1, 1]
    assert mine["step_s"] >= found["best"]["step_s"]
    one, two = found["curve"]
    assert (one["gpus"], one["plan"]["gpus"], two["gpus"]) == (1, 1, 2)
    assert two["plan"]["step_s"] == found["best"]["step_s"] < one["plan"]["step_s"]
    for plan in (found["best"], *found["plans"], mine, one["plan"], two["plan"]):
        # What is printed follows from the time of the step, its work and the GPUs.
        peak = plan["allocated"] * 989e12
        assert plan["best_mfu"] == pytest.approx(plan["model_flops"] / plan["best_s"] / peak)
        assert plan["tokens_per_s"] == pytest.approx(512 * 64 / plan["best_s"])
        hours = plan["gpu_hours_per_billion_tokens"]
        assert hours == pytest.approx(1e9 / (512 * 64) * plan["best_s"] * plan["allocated"] / 3600)
    # Both directions of five efficiencies and of the exposed share; nothing was measured.
    assert len(found["scaled"]) == 12
    for scaled in found["scaled"]:
        assert scaled["loss"] == 0 if scaled["stays"] else scaled["loss"] > 0
    assert main(["plan", "run.yaml", *PLAN, *beside, "--explain"]) == 0
    printed = capsys.readouterr().out
    for part in (
        "your layout\n",
        "curve\n",
        "if one figure is another multiple",
        "what they rest on\n",
    ):
        assert part in printed


@pytest.mark.usefixtures("folder")
def test_adapters_take_the_place_of_the_weights_that_train(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fixed = ["--only-run", "--fix", "mode=colocated", "--fix", "microbatches=4"]
    whole = asked(capsys, "run.yaml", *fixed)["best"]
    assert main(["plan", "run.yaml", *PLAN, *fixed, "--lora", "backbone=2", "--out", "p.json"]) == 0
    printed = capsys.readouterr().out
    assert "trains encoder, projector, backbone (LoRA of rank 2) in bfloat16" in printed
    found = read_plan(Path("p.json")).plan
    before, after = whole["modules"][-1], found.modules[-1]
    assert after.memory[0].weights > before["memory"][0]["weights"]
    for kind in ("masters", "gradients", "moments"):
        assert 0 < getattr(after.memory[0], kind) < before["memory"][0][kind] / 10
    # The run says the same in its section `lora`.
    adapted = ["lora.backbone.rank=2"]
    assert main(["plan", "run.yaml", *adapted, *PLAN, *fixed, "--out", "q.json"]) == 0
    assert Path("q.json").read_text() == Path("p.json").read_text()
    assert main(["train", "run.yaml", "--plan", "p.json"]) == 2
    assert ": none in the run, and backbone=2 in the plan" in capsys.readouterr().err
    assert main(["train", "run.yaml", *adapted, "--plan", "p.json", "--print-config"]) == 0


@pytest.fixture(scope="module")
def profiled(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, and the times of its model on this machine."""
    folder = tmp_path_factory.mktemp("profiled")
    tree = run_tree(
        folder / "run",
        data,
        train={"global_batch": 16},
        flow={"item_tokens": 16, "layout": "auto", "profile": "times.json"},
    )
    run = folder / "run.yaml"
    run.write_text(yaml.safe_dump(tree))
    options = {"--seconds": "60", "--threads": "1", "--image-tokens": "16", "--depth": "0"}
    words = [str(run), "--out", str(folder / "times.json")]
    with one_thread():
        assert measure([*words, *(word for each in options.items() for word in each)]) == 0
    return folder


@pytest.mark.usefixtures("folder")
def test_measured_times_replace_those_of_data_sheets(
    profiled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("cpu.yaml").write_text(SMALL.replace("0.01", "8"))
    given = ["--cluster", "cpu.yaml", "--only-run", "--sensitivity"]
    given += ["--profile", str(profiled / "times.json")]
    found = asked(capsys, str(profiled / "run.yaml"), *given)
    source = next(each for each in found["assumptions"] if each["name"] == "times on toy")["source"]
    assert source.startswith("measured on ") and source.endswith(", times.json")
    assert found["best"]["step_s"] > 0
    assert {each["name"] for each in found["scaled"]} >= {"measured times", "links inside nodes"}
    assert "attention" not in {each["name"] for each in found["scaled"]}


def test_a_layout_is_chosen_from_measured_times(
    profiled: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_layout, "available_cores", lambda: 2)
    config = load(profiled / "run.yaml")
    assert with_layout(config, resume=False).flow.chosen == RankLayout.colocated_on(2)
    assert " s a step on 2 cores, from times.json; next best " in capsys.readouterr().err
    # If updates take longest, ranks with one module each are faster.
    times = json.loads((profiled / "times.json").read_text())
    for update in times["updates"].values():
        update["seconds"] = 1e3
    slow = profiled / "slow.json"
    slow.write_text(json.dumps(times))
    config = replace(config, flow=replace(config.flow, profile=slow))
    assert with_layout(config, resume=False).flow.chosen == RankLayout.decoupled(1, 1)


@pytest.mark.usefixtures("folder")
def test_what_fits_only_with_tensor_parallelism_is_no_plan_that_flowtrain_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("small.yaml").write_text(SMALL.replace("0.01", "0.015"))
    words = ["plan", "run.yaml", "--cluster", "small.yaml", *PLAN[2:]]
    assert main(words) == 0
    capsys.readouterr()
    assert main([*words, "--only-run"]) == 2
    said = capsys.readouterr().err
    assert "no plan for batch=512 fits 2 toy" in said
    # What would make it fit, the memory of each GPU included.
    without = float(re.search(r"\((\S+) GiB fit\)", said)[1])  # type: ignore[index]
    masters = float(re.search(r"model\.dtype=bfloat16 needs (\S+) GiB", said)[1])  # type: ignore[index]
    assert masters < without
    assert re.search(r"; --lora backbone=16 needs \S+ GiB; ", said)
    fits = re.search(r"; (train.microbatch_tokens=\d+) fits; ", said)
    assert fits is not None
    # Overrides may stand behind the options, as in other commands.
    assert main([*words, "--only-run", fits[1]]) == 0


SMALL = """
gpus:
  - {name: toy, memory_gib: 0.01, bf16_tflops: 1, hbm_gb_per_s: 9, source: a test}
groups:
  - nodes: 1
    gpus_per_node: 2
    gpu: toy
    inside: {latency_us: 5, gb_per_s: 9}
    between: {latency_us: 5, gb_per_s: 9}
    source: a test
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cluster", "1x8xH101"], "GPU 'H101' is not known; did you mean H100?"),
        (["--cluster=-1x8xH100"], "nodes=-1: it must be at least 1"),
        (["--cluster", "small.yaml"], "no plan for batch=512 fits 2 toy"),
        (["--workload", "empty.jsonl"], "--workload empty.jsonl: the file has no samples"),
        (["--fix", "backbone.tq=2"], "--fix backbone.tq=2: choose from mode, microbatches, enc"),
        (["--fix", "backbone.tp=0"], "--fix backbone.tp=0: it must be a number of at least 1"),
        (
            ["--fix", "backbone.tp=3"],
            "backbone.tp=3: it must divide the 4 query and 2 key-value heads of backbone and the 2 "
            "GPUs of a node: give 1, 2\n",
        ),
        (["--fix", "encoder.dp=3"], "--fix encoder.dp=3: that is 3 GPUs at least, and there are 2"),
        (["--fix", "backbone.ep=2"], "--fix backbone.ep=2: model has no experts; leave it out"),
        (
            ["--fix", "pp=2", "--fix", "backbone.tp=2"],
            "--fix pp=2: choose from mode, microbatches,",
        ),
        (
            ["--fix", "backbone.tp=1", "--fix", "backbone.tp=2"],
            "--fix backbone.tp=1 --fix backbone.tp=2: backbone.tp has one value; give it once\n",
        ),
        (["--fix", "mode=prefix", "--fix", "mode=colocated"], "mode has one value; give it once"),
        (
            ["--fix", "encoder.tp=1", "--fix", "backbone.tp=2", "--fix", "mode=prefix"],
            "--fix encoder.tp=1 --fix backbone.tp=2: in mode prefix all modules have one layout",
        ),
        (
            ["--only-run", "--fix", "backbone.tp=2"],
            "--only-run --fix backbone.tp=2: FlowTrain runs tp=1; leave one of the two options out",
        ),
        (
            ["--only-run", "--fix", "mode=prefix"],
            "--only-run --fix mode=prefix: FlowTrain runs mode=colocated or mode=disaggregated;",
        ),
        (
            [
                "flow.mode=bounded",
                "flow.staleness=1",
                "--only-run",
                "--fix",
                "encoder.sharding=full",
            ],
            "--fix encoder.sharding=full: runs of this flow.mode, or with flow.cache, have "
            "encoder.sharding=replicated;",
        ),
        (["--fix", "mode=both"], "--fix mode=both: choose from prefix, colocated, disaggregated"),
        (["--check", "run.yaml"], "--check run.yaml: its flow.layout without numbers of ranks is"),
        (
            ["--lora", "head=2"],
            "--lora head=2: write PART=RANK, such as backbone=16; parts are enc",
        ),
        (["--lora", "encoder=0"], "--lora encoder=0: write PART=RANK"),
        (["--lora", "encoder=2", "--lora", "encoder=4"], "--lora encoder=4: encoder has adapter"),
        (["model.freeze=[projector]", "--lora", "projector=2"], "--lora projector=2: model.freeze"),
        (["lora.encoder.rank=2", "--lora", "encoder=2"], "--lora encoder=2: encoder has adapters"),
        (
            ["--lora", "backbone=10000000"],
            "LoRA adapters backbone=10000000: a rank above the width",
        ),
        (["--profile", "t", "--lora", "encoder=2"], "--profile t with adapters of encoder=2: "),
        (["--check", "run.yaml", "--lora", "backbone=2"], "--check run.yaml: its adapters are not"),
        (["--cache-hits", ".5"], "--cache-hits 0.5: the encoder trains, so that its features"),
        (["flow.mode=frozen", "--cache-hits", "2"], "--cache-hits 2.0: give a share from 0"),
        (["--gpus", "2"], "--gpus 2: write LOW..HIGH, such as 8..256"),
        (
            ["model.compute_dtype=float32"],
            "model.compute_dtype=float32: the peaks of H100 are those of bfloat16",
        ),
        (["train.global_batch=1000000000"], "batch=1000000000: "),
        (["train.microbatch_tokens=32"], "microbatch_tokens=32: the longest sample of workload"),
    ],
)
def test_unusable_input_is_one_line_that_names_it(
    words: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("small.yaml").write_text(SMALL)
    Path("empty.jsonl").touch()
    overrides = [] if words[0].startswith("--") else words[:1]
    options = [word for word in words if word not in overrides]
    code = main(["plan", "run.yaml", *overrides, *PLAN, *options, "--out", "plan.json"])
    printed = capsys.readouterr().err
    assert code == 2
    assert said in printed and printed.count("\n") == 1
    assert not Path("plan.json").exists()
