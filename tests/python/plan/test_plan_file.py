from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plans import colocated, decoupled, plan_file
from support import run_tree

from flowtrain.config import ConfigError, RunConfig, from_dict
from flowtrain.config.layout import RankLayout
from flowtrain.config.parallel import ModuleParallel
from flowtrain.plan.applied import with_plan
from flowtrain.plan.plan_file import PlannedRun, dump_plan, model_digest, read_plan
from flowtrain.plan.result import Plan, StageLayout


@pytest.fixture
def config(tmp_path: Path, data: Path) -> RunConfig:
    return from_dict(run_tree(tmp_path / "run", data, flow={"layout": "auto"}))


Write = Callable[..., Path]


@pytest.fixture
def write(config: RunConfig, tmp_path: Path) -> Write:
    """Writes a plan for the run."""

    def write(plan: Plan, **more: Any) -> Path:
        path = tmp_path / "plan.json"
        digest = model_digest(config.model.folder)
        path.write_text(dump_plan(plan_file(plan, digest, PlannedRun.of(config), **more)))
        return path

    return write


def test_a_plan_file_is_read_as_it_was_written(config: RunConfig, write: Write) -> None:
    plan = colocated(4, tp=1)
    path = write(plan)
    assert read_plan(path).plan == plan
    assert dump_plan(read_plan(path)) == path.read_text()


@pytest.mark.parametrize(
    ("plan", "layout"),
    [
        (colocated(3), RankLayout.colocated_on(3)),
        (decoupled(1, 3), RankLayout.decoupled(1, 3)),
    ],
)
def test_a_run_takes_the_layout_of_its_plan(
    plan: Plan, layout: RankLayout, config: RunConfig, write: Write
) -> None:
    planned = with_plan(config, write(plan))
    assert planned.flow.chosen == layout
    # A run that gives the same layout agrees with its plan.
    assert with_plan(planned, write(plan)) == planned


def sharded(ranks: int) -> Plan:
    """A plan with everything that a plan sets."""
    some = StageLayout(first=0, end=4, recompute="full", recompute_layers=2)
    all_of = colocated(ranks, sharding="full", recompute=True, stages=(some,))
    return replace(all_of, chunk_slots=3)


def test_a_run_shares_out_and_computes_again_what_its_plan_does(
    config: RunConfig, write: Write
) -> None:
    found = with_plan(config, write(sharded(2)))
    assert (found.flow.recompute, found.flow.chunk_slots) == (True, 3)
    assert found.parallel.encoder == ModuleParallel()
    assert found.parallel.backbone == ModuleParallel(
        sharding="full", recompute="full", recompute_layers=2
    )
    plain = with_plan(config, write(colocated(2)))
    assert (plain.parallel, plain.flow.chunk_slots) == (config.parallel, None)


@pytest.mark.parametrize(
    ("fields", "given", "said"),
    [
        (
            {"parallel": {"backbone": {"sharding": "optimizer"}}},
            (),
            "parallel.backbone.sharding: optimizer in the run, and full in the plan",
        ),
        (
            {},
            ("parallel.backbone.recompute_layers",),
            "backbone.recompute_layers: null in the run, and 2 in the plan",
        ),
        ({}, ("flow.recompute",), "flow.recompute: False in the run, and True in the plan; leave"),
        (
            {"parallel": {"encoder": {"recompute": "selective"}}},
            (),
            "parallel.encoder.recompute: selective in the run, and none in the plan",
        ),
    ],
)
def test_what_a_run_gives_against_its_plan_is_an_error_that_names_both(
    fields: dict[str, Any],
    given: tuple[str, ...],
    said: str,
    tmp_path: Path,
    data: Path,
    write: Write,
) -> None:
    config = from_dict(run_tree(tmp_path / "other", data, flow={"layout": "auto"}, **fields))
    with pytest.raises(ConfigError, match=said):
        with_plan(config, write(sharded(2)), given=given)


@pytest.mark.parametrize(
    ("plan", "more", "said"),
    [
        (
            replace(colocated(2, tp=2), not_run=("backbone: tp=2", "mode prefix")),
            {},
            "plan.json: backbone: tp=2, mode prefix: modelled, and not run",
        ),
        (colocated(8), {"nodes": 2}, "nodes=2: the plan is for several hosts; start its run by"),
    ],
)
def test_a_layout_that_a_run_on_one_host_cannot_take_is_an_error(
    plan: Plan, more: dict[str, Any], said: str, config: RunConfig, write: Write
) -> None:
    with pytest.raises(ConfigError, match=said):
        with_plan(config, write(plan, **more))


@pytest.mark.parametrize(
    ("section", "fields", "said"),
    [
        ("flow", {"layout": "auto", "ranks": 2}, "for flow.ranks=3, and the run for flow.ranks=2"),
        ("flow", {"encoder_ranks": 2}, "for flow.encoder_ranks=2 and flow.backbone_ranks=1;"),
        ("train", {"global_batch": 4}, "train.global_batch: 4 in the run, and 8 in the plan"),
        ("train", {"microbatch_tokens": 99}, "train.microbatch_tokens: 99 in the run"),
        ("train", {"logit_bytes": 1 << 29}, "train.logit_bytes: 536870912 in the run"),
        ("flow", {"layout": "auto", "item_tokens": 9}, "flow.item_tokens: 9 in the run"),
        ("model", {"dtype": "float64"}, "model.dtype: float64 in the run, and float32"),
        ("model", {"compute_dtype": "bfloat16"}, "model.compute_dtype: bfloat16 in the run"),
        ("model", {"freeze": ["backbone"]}, "model.freeze .*: encoder, projector in the run"),
        ("lora", {"backbone": {"rank": 4}}, r"lora \(.*\): backbone=4 in the run, and none in the"),
        ("optim", {"name": "sgd"}, "optim.name: sgd in the run, and adamw in the plan"),
    ],
)
def test_a_plan_for_another_run_is_an_error_that_names_the_field(
    section: str, fields: dict[str, Any], said: str, tmp_path: Path, data: Path, write: Write
) -> None:
    other = {"flow": {"layout": "auto"}, section: fields}
    config = from_dict(run_tree(tmp_path / "other", data, **other))
    with pytest.raises(ConfigError, match=said):
        with_plan(config, write(colocated(3)))


def test_a_plan_for_another_model_is_an_error(
    config: RunConfig, write: Write, tmp_path: Path, data: Path
) -> None:
    model = json.loads((data / "model" / "config.json").read_text())
    # What says nothing about sizes does not make another model.
    (tmp_path / "config.json").write_text(json.dumps(model | {"transformers_version": "0"}))
    assert model_digest(tmp_path) == model_digest(config.model.folder)
    model["text_config"]["num_hidden_layers"] += 1
    (tmp_path / "config.json").write_text(json.dumps(model))
    path = write(colocated(3), model_digest=model_digest(tmp_path))
    with pytest.raises(ConfigError, match="the plan is for tiny, whose sizes differ from those of"):
        with_plan(config, path)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda tree: tree["plan"]["modules"][0]["layout"].update(dp=9), "it was changed after"),
        (lambda tree: tree.update(version=0), "version=0, and this FlowTrain reads version 6"),
        (lambda tree: tree.pop("checksum"), "not a plan, which has a version and a checksum"),
    ],
)
def test_an_edited_plan_is_an_error(edit: Any, said: str, write: Write) -> None:
    path = write(colocated(3))
    tree = json.loads(path.read_text())
    edit(tree)
    path.write_text(json.dumps(tree))
    with pytest.raises(ConfigError, match=said):
        read_plan(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "there is no such file"), ("{", "a plan, which is JSON"), ("[]", "not a plan")],
)
def test_another_file_is_no_plan(text: str | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_plan(path)
