"""What a resumed run takes from its configuration, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from linear_run import configuration, rate, train

from flowtrain.config import ConfigError, RunConfig
from flowtrain.train.state.resume import FINGERPRINT, RULES, check_resume, data_state, fingerprint

FLOW = Path(__file__).resolve().parents[4] / "docs" / "flow.md"


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


# The linear module has a matrix, `weight`, and a vector, `bias`.
GROUPS: list[list[dict[str, Any]]] = [
    [{"match": "*", "lr": 0.01}],
    [{"match": "weight", "lr": 0.01}],
    [{"match": "weight", "lr": 0.01}, {"match": "bias", "weight_decay": 0.2}],
    [{"match": "weight", "train": False}],
    [{"match": "bias", "lr": 0.01}, {"match": "*", "train": False}],
]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("optim", OPTIMIZERS)
def test_a_resumed_run_with_groups_ends_with_the_same_bits(
    folder: Path, optim: dict[str, Any], groups: list[dict[str, Any]], dtype: str
) -> None:
    optim = {**optim, "lr": 0.1, "schedule": "cosine", "groups": groups}
    config = configuration(folder, optim=optim, model={"compute_dtype": dtype})
    _, whole = train(config)
    _, resumed = train(config, first=4)
    assert whole.stepped == resumed.stepped == 6
    for a, b in zip(whole.parameters, resumed.parameters, strict=True):
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


@pytest.mark.parametrize("schedule", ["linear", "cosine", "onecycle"])
def test_a_short_run_has_the_rates_of_the_longer_one_that_it_begins(
    folder: Path, schedule: str
) -> None:
    optim = {"lr": 0.2, "schedule": schedule}
    whole, _ = train(configuration(folder, train={"steps": 6}, optim=optim))
    optim["schedule_steps"] = 6
    begun, _ = train(configuration(folder, train={"steps": 3}, optim=optim))
    assert begun == whole[:3]


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_rate_falls_from_its_peak_towards_the_minimum(folder: Path, schedule: str) -> None:
    optim = {"lr": 0.2, "schedule": schedule, "min_lr_ratio": 0.25, "warmup_steps": 2}
    rates, module = train(configuration(folder, optim=optim))
    assert max(rates) == rates[2] == pytest.approx(0.2)
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[-1] > rate(module) == pytest.approx(0.05)


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
    ({"model": {"dtype": "float64"}}, r"model\.dtype='float32' \(now 'float64'\)"),
    (
        {"model": {"compute_dtype": "bfloat16"}},
        r"model\.compute_dtype='float32' \(now 'bfloat16'\)",
    ),
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
        # The dtype that null stands for.
        model={"config": None, "path": folder / "moved-model", "compute_dtype": "float32"},
        data={"path": folder / "moved-data.jsonl"},
    )
    check_resume(folder, fingerprint(config))
    (folder / "moved-model" / "tokenizer.json").write_text("{ }")
    (folder / "moved-data.jsonl").write_text("{}\n{}\n")
    with pytest.raises(ConfigError, match=r"contents of data\.path, .* model's tokenizer\.json;"):
        check_resume(folder, fingerprint(config))
    (folder / "moved-model" / "config.json").write_text('{"model_type": "llava"}')
    other = (
        r"change model_type='qwen3_vl' \(now 'llava'\), .* model's config\.json, tokenizer\.json"
    )
    with pytest.raises(ConfigError, match=other):
        check_resume(folder, fingerprint(config))


def test_sources_may_move_and_may_not_change_nor_their_weights(folder: Path) -> None:
    def given(*weights: float, name: str = "b.jsonl") -> dict[str, Any]:
        paths = [folder / "data.jsonl", folder / name]
        sources = [{"path": p, "weight": w} for p, w in zip(paths, weights, strict=True)]
        return fingerprint(configuration(folder, data={"path": None, "sources": sources}))

    (folder / "b.jsonl").write_text("{}\n{}\n")
    (folder / FINGERPRINT).write_text(json.dumps(given(1, 2)))
    with pytest.raises(ConfigError, match=r"data\.sources\.1\.weight=2\.0 \(now 3\.0\)"):
        check_resume(folder, given(1, 3))
    (folder / "b.jsonl").rename(folder / "c.jsonl")
    check_resume(folder, given(1, 2, name="c.jsonl"))
    (folder / "c.jsonl").write_text("{}\n{ }\n")
    with pytest.raises(ConfigError, match=r"change the contents of data\.sources\.1; restore"):
        check_resume(folder, given(1, 2, name="c.jsonl"))


def test_a_python_data_set_must_keep_its_import_path_and_length(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "resumed_rows.py").write_text("one = lambda: [{}]\ntwo = lambda: [{}, {}]\n")
    monkeypatch.syspath_prepend(folder)
    one, two = (
        fingerprint(configuration(folder, data={"path": None, "dataset": f"resumed_rows:{name}"}))
        for name in ("one", "two")
    )
    (folder / FINGERPRINT).write_text(json.dumps(one))
    assert data_state(folder) == one["data_state"] != two["data_state"]
    check_resume(folder, one)
    changed = (
        r"data\.dataset='resumed_rows:one' \(now 'resumed_rows:two'\), the contents of data\.d"
    )
    with pytest.raises(ConfigError, match=changed):
        check_resume(folder, two)
