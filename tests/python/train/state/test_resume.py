"""What a resumed run takes from its configuration, and what it refuses to change."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest
import torch
import torch.distributed as dist

from flowtrain.config import ConfigError, RunConfig, from_dict, load
from flowtrain.plan import StepPlan
from flowtrain.train.control.close import StepDecision
from flowtrain.train.state.checkpoint import CheckpointError, Checkpoints, read_meta
from flowtrain.train.state.logs import LOGS
from flowtrain.train.state.module import Module
from flowtrain.train.state.resume import FINGERPRINT, RULES, check_resume, fingerprint
from flowtrain.train.state.run_folder import open_run

FLOW = Path(__file__).resolve().parents[4] / "docs" / "flow.md"
APPLY = StepDecision(action="apply", scale=1.0, loss=0.0, grad_norm=0.0, num_targets=1, wait_s={})


def configuration(folder: Path, **sections: dict[str, Any]) -> RunConfig:
    tree: dict[str, Any] = {
        "run": folder / "run",
        "model": {"config": folder / "model"},
        "data": {"path": folder / "data.jsonl"},
        "train": {"steps": 6},
        "checkpoint": {"every": 2, "keep": 9},
    }
    for name, section in sections.items():
        tree[name] = {**tree.get(name, {}), **section}
    return from_dict(tree)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of a model and of its data, and a run's folder."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    (tmp_path / "data.jsonl").write_text("{}\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / FINGERPRINT).write_text("{}")
    return tmp_path


def train(config: RunConfig, first: int = 0, *, ranks: int = 1) -> tuple[list[float], Module]:
    """Learning rates of the steps from `first` on, by the backbone alone, and what was trained."""
    torch.manual_seed(config.train.seed)
    module = Module.build(torch.nn.Linear(3, 2), config, trains=True)
    world: Any = SimpleNamespace(name="backbone", size=ranks, is_leader=True)
    store: Any = SimpleNamespace(get=lambda *_, **__: 0, delete=lambda _: None)
    checkpoints = Checkpoints(config, world, store)
    if first:
        checkpoint = config.run / "checkpoints" / f"step-{first:08d}"
        checkpoints.load(checkpoint, module, read_meta(checkpoint))
    rates = []
    for step in range(first, config.train.steps):
        torch.manual_seed(step)
        for parameter in module.trainable:
            parameter.grad = torch.randn_like(parameter)
        rates.append(module.lr)
        module.apply(APPLY, saw_samples=True)
        checkpoints.save_if_due(StepPlan(step=step, kind="train"), module)
    return rates, module


OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "adamw", "weight_decay": 0.1},
    {"name": "sgd", "weight_decay": 0.1},
    {"name": "sgd", "momentum": 0.9},
]


@pytest.mark.parametrize("optim", OPTIMIZERS)
@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "onecycle"])
def test_a_resumed_run_ends_with_the_same_bits(
    folder: Path, schedule: str, optim: dict[str, Any]
) -> None:
    config = configuration(folder, optim={**optim, "lr": 0.1, "schedule": schedule})
    rates, whole = train(config)
    after, resumed = train(config, first=4)
    assert after == rates[4:]
    for a, b in zip(whole.trainable, resumed.trainable, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "onecycle"])
def test_an_extended_run_has_the_values_of_its_new_configuration(
    folder: Path, schedule: str
) -> None:
    train(configuration(folder, optim={"lr": 0.1, "schedule": schedule}))
    warmup = 0 if schedule == "onecycle" else 2
    new = {"lr": 0.2, "weight_decay": 0.5, "betas": [0.8, 0.9], "eps": 1e-6}
    config = configuration(
        folder,
        train={"steps": 10},
        optim={**new, "schedule": schedule, "warmup_steps": warmup},
    )
    rates, module = train(config, first=6)
    assert module.optimizer is not None
    group = module.optimizer.param_groups[0]
    assert (group["weight_decay"], group["betas"], group["eps"]) == (0.5, (0.8, 0.9), 1e-6)
    assert rates == train(config)[0][6:]
    assert min(rates) > 0


def schema_fields(kind: type, above: str = "") -> Iterator[str]:
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hint := hints[field.name]):
            assert isinstance(hint, type)
            yield from schema_fields(hint, f"{above}{field.name}.")
        else:
            yield f"{above}{field.name}"


def test_every_field_has_a_rule_and_the_documentation_has_the_same() -> None:
    assert sorted(RULES) == sorted(schema_fields(RunConfig))
    rows = re.findall(r"^\| (`.*) \| (\w+) \|", FLOW.read_text(), re.MULTILINE)
    told = {name: rule for names, rule in rows for name in re.findall(r"`([\w.]+)`", names)}
    assert told == RULES


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"optim": {"name": "sgd"}}, r"optim\.name='adamw' \(now 'sgd'\)"),
    ({"train": {"seed": 1}}, r"train\.seed=0 \(now 1\)"),
    ({"train": {"global_batch": 16}}, r"train\.global_batch=32 \(now 16\)"),
    ({"data": {"shuffle": False}}, r"data\.shuffle=True \(now False\)"),
    ({"model": {"dtype": "bfloat16"}}, r"model\.dtype='float32' \(now 'bfloat16'\)"),
    ({"flow": {"mode": "frozen"}}, r"flow\.mode='strict' \(now 'frozen'\)"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_a_change_that_would_mix_two_runs_is_refused(
    folder: Path, change: dict[str, Any], message: str
) -> None:
    before = fingerprint(configuration(folder))
    (folder / FINGERPRINT).write_text(json.dumps(before))
    check_resume(folder, before)
    with pytest.raises(ConfigError, match=message):
        check_resume(folder, fingerprint(configuration(folder, **change)))


def test_data_and_model_may_move_and_may_not_change(folder: Path) -> None:
    (folder / FINGERPRINT).write_text(json.dumps(fingerprint(configuration(folder))))
    for name in ("model", "data.jsonl"):
        (folder / name).rename(folder / f"moved-{name}")
    config = configuration(
        folder,
        model={"config": None, "path": folder / "moved-model"},
        data={"path": folder / "moved-data.jsonl"},
    )
    check_resume(folder, fingerprint(config))
    (folder / "moved-model" / "tokenizer.json").write_text("{ }")
    (folder / "moved-data.jsonl").write_text("{}\n{}\n")
    with pytest.raises(ConfigError, match=r"content of data\.path, .* tokenizer\.json of the mo"):
        check_resume(folder, fingerprint(config))


def test_fewer_steps_than_the_checkpoint_has_are_refused(folder: Path) -> None:
    config = configuration(folder)
    with open_run(config, resume=False) as trained:
        assert trained == 0
        train(config)
    with open_run(config, resume=True) as trained:
        assert trained == 6
    fewer = configuration(folder, train={"steps": 5})
    message = r"train\.steps=5: .*step-00000006 has 6 steps already"
    with pytest.raises(ConfigError, match=message), open_run(fewer, resume=True):
        pass


def test_a_checkpoint_alone_makes_a_folder_one_that_holds_a_run(folder: Path) -> None:
    config = configuration(folder)
    train(config)
    with pytest.raises(ConfigError, match="it holds a run"), open_run(config, resume=False):
        pass


def test_a_checkpoint_that_cannot_be_written_or_read_is_named_with_the_cause(folder: Path) -> None:
    config = configuration(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(
            CheckpointError, match=r"step-00000002\.part/backbone: OSError: .*File too large"
        ):
            train(config)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    train(config)
    (config.run / "checkpoints/step-00000004/backbone/.metadata").unlink()
    with pytest.raises(CheckpointError, match="step-00000004/backbone: .*No such file"):
        train(config, first=4)


@pytest.fixture
def group() -> Iterator[None]:
    """A process group: its one rank hears of errors as the ranks of a larger one do, by pickle."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_disk_that_is_full_within_a_tensor_is_the_cause_that_is_named(
    ranks: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {"small": torch.zeros(4), "large": torch.zeros(2000)}
    monkeypatch.setattr("flowtrain.train.state.checkpoint._tensors", lambda _: state)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(CheckpointError, match=r"backbone: OSError: .*File too large.*--resume"):
            train(configuration(folder), ranks=ranks)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_checkpoint_that_cannot_be_completed_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_disk(*_: Any) -> None:
        raise OSError("no space")

    monkeypatch.setattr("flowtrain.train.state.checkpoint.commit", fill_disk)
    with pytest.raises(CheckpointError, match=r"step-00000002\.part: OSError: no space"):
        train(configuration(folder))


def test_a_checkpoint_is_valid_only_when_its_steps_are_in_the_logs_on_the_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configuration(folder)
    logs = [config.run / name for name in LOGS]
    for log in logs:
        log.touch()
    flushed = set()
    fsync = os.fsync

    def remember(descriptor: int) -> None:
        flushed.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    def check(*_: Any) -> None:
        assert flushed >= set(logs)

    monkeypatch.setattr(os, "fsync", remember)
    monkeypatch.setattr("flowtrain.train.state.checkpoint.commit", check)
    train(configuration(folder))
    assert flushed


def test_a_start_on_a_full_disk_names_the_file_and_can_be_repeated(folder: Path) -> None:
    config = configuration(folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with (
            pytest.raises(OSError, match=r"run/config\.yaml"),
            open_run(config, resume=False),
        ):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with open_run(config, resume=False) as trained:
        assert trained == 0
    assert not list(config.run.glob("*.part"))


def test_an_attempt_has_the_edges_of_its_own_ranks_alone(folder: Path) -> None:
    config = configuration(folder)
    edges = config.run / "edges"
    for steps, left in ((0, []), (config.train.steps, ["backbone.1.txt"])):
        if steps:
            train(config)
        edges.mkdir()
        (edges / "backbone.1.txt").touch()
        with open_run(config, resume=True) as trained:
            assert trained == steps
        assert [path.name for path in edges.glob("*")] == left
        shutil.rmtree(edges, ignore_errors=True)


def test_a_configuration_of_the_user_in_the_run_folder_is_not_overwritten(folder: Path) -> None:
    config = configuration(folder)
    mine = config.run / "config.yaml"
    mine.write_text("# my own\n")
    with pytest.raises(ConfigError, match="did not write"), open_run(config, resume=False):
        pass
    assert mine.read_text() == "# my own\n"
    mine.unlink()
    for changed in (config, configuration(folder, train={"steps": 7})):
        with open_run(changed, resume=False):
            assert load(mine) == changed
