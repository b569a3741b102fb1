from __future__ import annotations

import dataclasses
import re
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import run_tree, write_tiny_data

from flowtrain.cli.main import main
from flowtrain.config import ConfigError, RunConfig, dump, from_dict
from flowtrain.config.layout import RankLayout
from flowtrain.config.parallel import ModuleParallel, ParallelConfig, Recompute
from flowtrain.plan.applied import with_plan
from flowtrain.plan.cluster import local
from flowtrain.plan.host import Choice
from flowtrain.plan.host.sampled import SampledSteps
from flowtrain.plan.plan_file import read_plan
from flowtrain.plan.run_layout import RunLayout
from flowtrain.train.launch import calibration
from flowtrain.train.launch import layout as launch_layout
from flowtrain.train.launch.layout import with_layout
from flowtrain.train.launch.planned import planned


def automatic(folder: Path, data: Path) -> RunConfig:
    return from_dict(run_tree(folder, data, flow={"layout": "auto"}))


def test_a_layout_is_chosen_and_the_line_says_why(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = with_layout(automatic(tmp_path / "run", data), resume=False).flow.chosen
    said = capsys.readouterr().err
    assert said.startswith(f"flowtrain: layout {chosen}: estimated ")
    assert ", from calibration; next best " in said
    assert len(chosen.labels) <= 8  # train.global_batch


def test_a_run_with_adapters_is_chosen_by_what_they_cost(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[SampledSteps] = []
    choose = launch_layout.choose_on_cores

    def recorded(steps: SampledSteps, *arguments: Any, **options: Any) -> Choice:
        found.append(steps)
        return choose(steps, *arguments, **options)

    monkeypatch.setattr(launch_layout, "choose_on_cores", recorded)
    adapters = {"encoder": {"rank": 1}, "projector": {"rank": 1}, "backbone": {"rank": 1}}
    for lora in ({}, adapters):
        tree = run_tree(tmp_path / "run", data, flow={"layout": "auto"}, lora=lora)
        with_layout(from_dict(tree), resume=False)
    (world,) = RankLayout.colocated_on(1).worlds
    whole, adapted = (steps.trained_bytes(world) for steps in found)
    assert 0 < adapted < whole / 5


def test_a_resumed_run_keeps_the_layout_in_its_folder(tmp_path: Path, data: Path) -> None:
    config = automatic(tmp_path / "run", data)
    layout = RankLayout.decoupled(3, 1)
    before = dataclasses.replace(config, flow=config.flow.with_layout(layout))
    config.run.mkdir()
    config.run.joinpath("config.yaml").write_text(dump(before))
    assert with_layout(config, resume=True).flow.chosen == layout
    assert with_layout(before, resume=False).flow.chosen == layout


def test_a_resumed_run_keeps_what_its_modules_share_out(tmp_path: Path, data: Path) -> None:
    config = automatic(tmp_path / "run", data)
    before = RunLayout(
        ranks=RankLayout.colocated_on(2),
        parallel=ParallelConfig(backbone=ModuleParallel(sharding="full")),
        chunk_slots=2,
    ).applied(config)
    config.run.mkdir()
    config.run.joinpath("config.yaml").write_text(dump(before))
    assert with_layout(config, resume=True) == before
    # What the run gives holds.
    own = ParallelConfig(backbone=ModuleParallel(sharding="optimizer"))
    given = dataclasses.replace(config, parallel=own)
    assert with_layout(given, resume=True) == dataclasses.replace(before, parallel=own)


def test_a_profile_that_does_not_exist_is_named(tmp_path: Path, data: Path) -> None:
    config = automatic(tmp_path / "run", data)
    flow = dataclasses.replace(config.flow, profile=tmp_path / "times.json")
    with pytest.raises(ConfigError, match=r"flow\.profile=.*times\.json: there is no such file"):
        with_layout(dataclasses.replace(config, flow=flow), resume=False)


def see_gpus(monkeypatch: pytest.MonkeyPatch, *names: str, mib: int = 80 << 10) -> None:
    """Let torch and nvidia-ml-py see GPUs of these names."""
    device = partial(SimpleNamespace, total_memory=mib << 20)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(names))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda number: device(name=names[number])
    )
    monkeypatch.setattr(local, "_devices", lambda: (list(names), mib << 20))


def on_gpus(folder: Path, data: Path, *, batch: int = 512, dtype: str = "bfloat16") -> RunConfig:
    return from_dict(
        run_tree(
            folder,
            data,
            model={"device": "cuda", "compute_dtype": dtype},
            train={"global_batch": batch, "microbatch_tokens": 4096},
            flow={"layout": "auto", "item_tokens": 1024},
        )
    )


H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture(scope="module")
def checked(data: Path, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A run on GPUs with stored sizes of its samples."""
    folder = tmp_path_factory.mktemp("checked")
    shutil.copytree(data, folder / "data")
    config = on_gpus(folder / "run", folder / "data")
    path = folder / "run.yaml"
    path.write_text(dump(config))
    assert main(["data", "check", str(path), "--workers", "1"]) == 0
    return config


_ENCODER, _BACKBONE = "parallel.encoder.recompute", "parallel.backbone.recompute"


@pytest.mark.parametrize(
    ("mib", "layout", "fields"),
    [
        (80 << 10, RankLayout.colocated_on(2), {}),
        # With the activations of some slots, and less of them.
        (
            39,
            RankLayout.colocated_on(2),
            {"flow.chunk_slots": 1, _ENCODER: "full", f"{_ENCODER}_layers": 1},
        ),
        # Without those of the encoder, and with less of the backbone.
        (
            20,
            RankLayout.colocated_on(2),
            {"flow.recompute": True, _BACKBONE: "full", f"{_BACKBONE}_layers": 2},
        ),
        # With one module each.
        (12, RankLayout.decoupled(1, 1), {"flow.recompute": True, _BACKBONE: "full"}),
        (8, None, {}),
    ],
)
def test_gpus_have_the_layout_of_a_plan_that_fits_into_their_memory(
    mib: int,
    layout: RankLayout | None,
    fields: dict[str, object],
    checked: RunConfig,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    see_gpus(monkeypatch, H100, H100, mib=mib)
    run, plan = str(checked.run.with_suffix(".yaml")), tmp_path / "plan.json"
    code = main(["plan", run, "--cluster", "local", "--only-run", "--out", str(plan)])
    if layout is None:
        assert code == 2
        with pytest.raises(ConfigError, match=r"flow\.layout=auto: .* no plan .*GiB are missing"):
            with_layout(checked, resume=False)
        return
    capsys.readouterr()
    chosen = with_layout(checked, resume=False)
    assert chosen.flow.chosen == layout
    # One module for each rank has nothing to share out.
    sharding = "optimizer" if layout.colocated else "replicated"
    assert chosen.parallel.encoder.sharding == chosen.parallel.backbone.sharding == sharding
    found = RunLayout.of_plan(read_plan(plan).plan)
    set_fields = {
        name: value for name, value in found.fields.items() if value and "sharding" not in name
    }
    assert {name: value for name, value in set_fields.items() if value != "none"} == fields
    assert chosen == with_plan(checked, plan) == found.applied(checked)
    # The file names the layers.
    *_, backbone = read_plan(plan).modules
    assert backbone.mesh == ({"shard": 2} if layout.colocated else {"replicate": 1})
    blocks = [name for name in backbone.stages[0] if ".layers." in name]
    again = found.parallel.backbone
    count = 0 if again.recompute == "none" else again.recompute_layers or len(blocks)
    assert len(blocks) > 2 and backbone.recomputed == tuple(blocks[:count])
    seconds = f"{read_plan(plan).plan.best_s:.3g}"
    said = capsys.readouterr().err
    assert f"estimated {seconds} s a step on 2 H100, from the data sheet of H100" in said
    assert f"layout {found}: " in said
    assert all(name in said for name in fields)


def test_the_estimate_has_what_the_run_lets_its_backbone_compute_again(
    checked: RunConfig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    see_gpus(monkeypatch, H100)
    seconds = []
    levels: tuple[Recompute, ...] = ("none", "selective", "full")
    for level in levels:
        own = ParallelConfig(backbone=ModuleParallel(recompute=level))
        with_layout(dataclasses.replace(checked, parallel=own), resume=False)
        (step_s,) = re.findall(r": estimated (\S+) s a step", capsys.readouterr().err)
        seconds.append(float(step_s))
    assert seconds[0] < seconds[1] < seconds[2]


def test_a_plan_for_other_samples_or_fewer_gpus_is_refused(
    checked: RunConfig,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    see_gpus(monkeypatch, H100, H100)
    run, plan = str(checked.run.with_suffix(".yaml")), tmp_path / "plan.json"
    assert main(["plan", run, "--cluster", "local", "--only-run", "--out", str(plan)]) == 0
    capsys.readouterr()
    planned(checked, plan, given=())
    assert capsys.readouterr().err == ""
    larger = dataclasses.replace(checked.data, min_pixels=64 * 64)
    with pytest.raises(
        ConfigError, match=r"other samples, as these changed: data\.min_pixels; run"
    ):
        planned(dataclasses.replace(checked, data=larger), plan, given=())
    assert checked.data.path is not None
    shutil.copytree(checked.data.path.parent, tmp_path / "data")
    moved = dataclasses.replace(checked.data, path=tmp_path / "data" / checked.data.path.name)
    assert moved.path is not None
    planned(dataclasses.replace(checked, data=moved), plan, given=())
    moved.path.write_text(moved.path.read_text().split("\n", 1)[1])
    with pytest.raises(ConfigError, match=rf"the contents of {moved.path.name}; run `flowtrain da"):
        planned(dataclasses.replace(checked, data=moved), plan, given=())
    see_gpus(monkeypatch, H100)
    with pytest.raises(ConfigError, match="the plan is for 2 GPUs, and this machine has 1; run"):
        planned(checked, plan, given=())


@pytest.mark.parametrize(
    ("names", "batch", "dtype", "said"),
    [
        # At most as many ranks as samples of a step; rows are below the range of the data sheet.
        ([H100] * 4, 1, "bfloat16", "on 1 H100, from the data sheet of H100, extrapolated"),
        ([H100] * 2, 16, "float32", "on 2 H100, from calibration"),
        (["NVIDIA L4"] * 2, 16, "bfloat16", "on 2 NVIDIA L4, from calibration"),
        (["NVIDIA H100 PCIe"] * 2, 16, "bfloat16", "on 2 H100-PCIe, from calibration"),
    ],
)
def test_gpus_that_no_data_sheet_describes_are_calibrated(
    names: list[str],
    batch: int,
    dtype: str,
    said: str,
    tmp_path: Path,
    data: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    see_gpus(monkeypatch, *names)
    monkeypatch.setattr(calibration, "peak_flops", lambda device, dtype: 1e14)
    chosen = with_layout(on_gpus(tmp_path / "run", data, batch=batch, dtype=dtype), resume=False)
    assert len(chosen.flow.chosen.labels) <= min(len(names), batch)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["strict", "frozen"])
def test_without_images_gpus_are_colocated(
    mode: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_tiny_data(tmp_path, text_only=1.0)
    see_gpus(monkeypatch, H100, H100)
    config = on_gpus(tmp_path / "run", tmp_path)
    config = dataclasses.replace(config, flow=dataclasses.replace(config.flow, mode=mode))
    chosen = with_layout(config, resume=False)
    assert chosen.flow.chosen == RankLayout.colocated_on(2)
    assert "estimated " in capsys.readouterr().err
    # A frozen tower has no states to divide.
    assert chosen.parallel.backbone.sharding == "optimizer"
    sharding = "replicated" if mode == "frozen" else "optimizer"
    assert chosen.parallel.encoder.sharding == sharding


def test_one_gpu_has_nothing_to_share_out(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    see_gpus(monkeypatch, H100)
    given = ParallelConfig(backbone=ModuleParallel(sharding="full"))
    config = dataclasses.replace(on_gpus(tmp_path / "run", data), parallel=given)
    chosen = with_layout(config, resume=False)
    assert (chosen.flow.chosen, chosen.parallel) == (RankLayout.colocated_on(1), given)


def test_samples_that_cannot_be_used_are_left_to_the_ranks(tmp_path: Path, data: Path) -> None:
    config = automatic(tmp_path / "run", data)
    short = dataclasses.replace(config.train, microbatch_tokens=1)
    chosen = with_layout(dataclasses.replace(config, train=short), resume=False).flow.chosen
    assert chosen == RankLayout.colocated_on(1)
