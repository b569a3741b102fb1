"""Promises of the modes; pool size and timing change no number."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from executed import executed, scheduled
from forked_ranks import trained
from support import run_tree

from flowtrain.models.registry import family_for
from flowtrain.train.state.logs import METRICS, PLANS, read_log

SHAPE = {"encoder_ranks": 2, "backbone_ranks": 2}
LAYOUTS = [SHAPE, {"ranks": 2}, {"ranks": 3}]
# Of the runs in the smallest pool: mode, and place in LAYOUTS. The others are deep.
_FAST = {("strict", 0), ("frozen", 2)}


def test_bounded_weights_are_never_older_than_allowed(tmp_path: Path, data: Path) -> None:
    tree = run_tree(
        tmp_path / "run",
        data,
        train={"steps": 12},
        flow={**SHAPE, "mode": "bounded", "staleness": 2},
    )
    metrics = trained(tree)
    ages = [age for step in metrics for age in step["weight_ages"]]
    assert max(ages) == 2
    assert metrics[0]["weight_ages"] == [0] * len(metrics[0]["weight_ages"])
    assert list(scheduled(tmp_path / "run").diff(executed(tmp_path / "run"))) == []
    assert sum(m["loss"] for m in metrics[-3:]) < sum(m["loss"] for m in metrics[:3])
    edges = {path.stem: path.read_text() for path in (tmp_path / "run" / "edges").iterdir()}
    assert sorted(edges) == ["backbone.0", "backbone.1", "encoder.0", "encoder.1"]
    # One edge to each of two readers, and one from them.
    assert all(told.count("  takes shared memory: ") == 3 for told in edges.values())


def test_bounded_weights_of_a_colocated_run_are_never_older_than_allowed(
    tmp_path: Path, data: Path
) -> None:
    tree = run_tree(
        tmp_path / "run",
        data,
        train={"steps": 8},
        flow={"ranks": 3, "mode": "bounded", "staleness": 2},
        pool={"scale": 1.0},
        debug={"delay_ms": 30.0},
    )
    metrics = trained(tree)
    ages = [set(step["weight_ages"]) for step in metrics]
    assert ages == [{0}, {1}, *[{2}] * 6]


def test_chunks_of_slots_change_no_number(tmp_path: Path, data: Path) -> None:
    def run(name: str, **flow: int) -> Path:
        # So few samples cannot be balanced, and so small slots hold one or two of them.
        train = {"steps": 6, "global_batch": 5, "microbatch_tokens": 70}
        trained(run_tree(tmp_path / name, data, train=train, flow={"ranks": 3, **flow}))
        return tmp_path / name

    whole, chunks = run("whole"), run("chunks", chunk_slots=1)
    plans = read_log(whole / PLANS)
    moved = [sum(item["encoder"] != item["reader"] for item in plan["items"]) for plan in plans]
    assert any(plan["slots"] > 1 and images for plan, images in zip(plans, moved, strict=True))
    for file in (METRICS, PLANS, "final/model.safetensors"):
        assert (whole / file).read_bytes() == (chunks / file).read_bytes()
    assert scheduled(whole) != scheduled(chunks)
    for run in (whole, chunks):
        assert list(scheduled(run).diff(executed(run))) == []


@pytest.mark.parametrize(
    ("flow", "sections"),
    [
        ({"mode": "strict"}, {}),
        ({"mode": "bounded", "staleness": 2}, {}),
        # Weights of the base are no copies of a version, and adapters have another dtype.
        (
            {"mode": "bounded", "staleness": 2},
            {
                "model": {"compute_dtype": "bfloat16"},
                "lora": {"encoder": {"rank": 2}, "backbone": {"rank": 4}, "dropout": 0.2},
            },
        ),
    ],
    ids=["strict", "bounded", "bounded adapters"],
)
def test_recomputation_changes_no_number(
    flow: dict[str, Any], sections: dict[str, Any], tmp_path: Path, data: Path
) -> None:
    def metrics(name: str, *, recompute: bool = False, **more: Any) -> list[dict[str, Any]]:
        tree = run_tree(
            tmp_path / name,
            data,
            train={"steps": 6},
            flow={"encoder_ranks": 1, **flow, "recompute": recompute},
            **sections,
            **more,
        )
        return trained(tree)

    plain = metrics("plain")
    assert metrics("items", recompute=True) == plain
    levels = {"encoder": {"recompute": "full"}, "backbone": {"recompute": "selective"}}
    assert metrics("layers", parallel=levels) == plain


@pytest.mark.parametrize(
    ("mode", "layout"),
    [
        pytest.param(mode, layout, marks=() if (mode, place) in _FAST else pytest.mark.deep)
        for mode in ("strict", "frozen")
        for place, layout in enumerate(LAYOUTS)
    ],
)
def test_the_smallest_pool_gives_the_same_losses(
    mode: str, layout: dict[str, int], tmp_path: Path, data: Path
) -> None:
    def losses(name: str, scale: float, delay_ms: float, tier: str) -> list[float]:
        tree = run_tree(
            tmp_path / name,
            data,
            train={"steps": 5},
            flow={**layout, "mode": mode},
            pool={"scale": scale, "tier": tier},
            debug={"delay_ms": delay_ms},
        )
        return [step["loss"] for step in trained(tree)]

    # The small one is handled as memory of a device, whose slabs have more states.
    assert losses("small", 1.0, 30.0, "fake") == losses("large", 4.0, 0.0, "host")


@pytest.mark.parametrize(
    ("layouts", "mode", "groups"),
    [
        (
            [{"encoder_ranks": 1}, {"ranks": 2}],
            {"mode": "bounded", "staleness": 1},
            [{"match": "model.visual.*", "lr": 1e-4}],
        ),
        # A few layers train on each side, as with adapters.
        (
            [{"ranks": 2}, {"encoder_ranks": 1}],
            {"mode": "strict"},
            [{"match": "*.mlp.*", "lr": 1e-4}, {"match": "*", "train": False}],
        ),
    ],
)
def test_a_run_with_groups_is_resumed_in_another_layout(
    layouts: list[dict[str, int]],
    mode: dict[str, Any],
    groups: list[dict[str, Any]],
    tmp_path: Path,
    data: Path,
) -> None:
    before, after = (
        run_tree(
            tmp_path / "run",
            data,
            flow={**layout, **mode},
            optim={"groups": groups},
            checkpoint={"every": 2},
        )
        for layout in layouts
    )
    trained(before)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000004")
    shape = [(1 + math.cos(step * math.pi / 4)) / 2 for step in range(4)]
    metrics = trained(after, resume=True)
    if mode["mode"] == "bounded":
        told = [
            {world: norm["step"] for world, norm in m["grad_norms"].items()} for m in metrics[:2]
        ]
        assert told == [{"backbone": 0, "encoder": 0}, {"backbone": 1, "encoder": 0}]
        assert all(step["grad_norm"] > 0 for step in metrics[2:])
    assert [step["lr"] for step in metrics] == pytest.approx([1e-3 * share for share in shape])
    rates = [step["group_lrs"][groups[0]["match"]] for step in metrics]
    assert rates == pytest.approx([1e-4 * share for share in shape])


@pytest.mark.parametrize("sharding", ["replicated", "full"])
@pytest.mark.parametrize("layout", [pytest.param(LAYOUTS[0], marks=pytest.mark.deep), LAYOUTS[1]])
def test_steps_without_any_image_do_not_hang(
    layout: dict[str, int], sharding: str, tmp_path: Path
) -> None:
    from support import write_tiny_data

    write_tiny_data(tmp_path / "data", samples=32, text_only=0.9)
    tree = run_tree(
        tmp_path / "run",
        tmp_path / "data",
        train={"global_batch": 2},
        flow=layout,
        parallel={module: {"sharding": sharding} for module in ("encoder", "backbone")},
    )
    metrics = trained(tree)
    assert any(step["weight_ages"] == [] for step in metrics)


@pytest.mark.parametrize(
    ("mode", "freeze"),
    [
        ("strict", []),
        # Without an image, a rank has nothing that trains.
        ("frozen", ["backbone"]),
        pytest.param("frozen", [], marks=pytest.mark.deep),
        pytest.param("strict", ["backbone"], marks=pytest.mark.deep),
    ],
)
def test_sharded_ranks_with_and_without_images_meet(
    mode: str, freeze: list[str], tmp_path: Path
) -> None:
    from support import write_tiny_data

    # Each of two ranks has one sample of a step, so that they differ in half of the steps.
    write_tiny_data(tmp_path / "data", samples=32, text_only=0.5)

    def losses(sharding: str) -> list[float]:
        tree = run_tree(
            tmp_path / sharding,
            tmp_path / "data",
            model={"freeze": freeze},
            train={"global_batch": 2, "steps": 8},
            flow={"ranks": 2, "mode": mode},
            parallel={module: {"sharding": sharding} for module in ("encoder", "backbone")},
        )
        return [step["loss"] for step in trained(tree)]

    assert losses("full") == pytest.approx(losses("replicated"), rel=1e-6)


def test_sharded_ranks_start_from_the_weights_of_a_folder(tmp_path: Path, data: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(data, source)
    model: Any = family_for(source / "model").build(
        # Not `train.seed`, from which a run would draw other weights.
        "full",
        weights=None,
        seed=5,
        dtype=torch.float64,
        device=torch.device("cpu"),
    )
    model.save_pretrained(source / "model")

    def losses(sharding: str) -> list[float]:
        tree = run_tree(
            tmp_path / sharding,
            source,
            model={"config": None, "path": str(source / "model"), "dtype": "float64"},
            train={"steps": 2},
            flow={"ranks": 2},
            parallel={module: {"sharding": sharding} for module in ("encoder", "backbone")},
        )
        return [step["loss"] for step in trained(tree)]

    assert losses("full") == pytest.approx(losses("replicated"), rel=1e-12)


@pytest.mark.deep
def test_an_empty_slot_whose_tokens_are_targets_changes_the_loss(
    tmp_path: Path, data: Path
) -> None:
    def losses(fault: str | None) -> list[float]:
        tree = run_tree(
            tmp_path / f"{fault}",
            data,
            # One of three ranks has no sample.
            train={"global_batch": 2, "steps": 2},
            flow={"ranks": 3},
            parallel={"backbone": {"sharding": "full"}},
            debug={"fault": fault},
        )
        return [step["loss"] for step in trained(tree)]

    exact, wrong = losses(None), losses("faults:weighty_dummy")
    assert wrong[0] != pytest.approx(exact[0], rel=1e-6)
