from __future__ import annotations

from pathlib import Path

import pytest

from flowtrain.config import ConfigError
from flowtrain.plan.cluster import parse_cluster
from flowtrain.plan.inputs import gpu_budgets, planned_config, planned_samples
from flowtrain.plan.work import MAX_BATCH
from tests.planned import small_work

RUN = """
run: out
model: {config: small, freeze: [backbone]}
data: {path: train.jsonl}
train: {steps: 3, global_batch: 6}
"""


def test_a_model_alone_is_a_run_of_common_choices_that_words_change() -> None:
    config = planned_config(["train.global_batch=96", "optim.name=sgd"], model=Path("/m"))
    assert config.model.folder == Path("/m")
    assert (config.model.dtype, config.model.pass_dtype) == ("float32", "bfloat16")
    assert config.trained_parts == ("encoder", "projector", "backbone")
    assert (config.train.global_batch, config.optim.name) == (96, "sgd")
    # The words of one command do not change the next.
    assert planned_config([], model=Path("/m")).train.global_batch == 512


def test_items_of_a_model_alone_are_those_of_a_run_on_gpus() -> None:
    alone = planned_config([], model=Path("/m"))
    on_gpus, on_cpus = (
        planned_config(["flow.item_tokens=null", f"model.device={device}"], model=Path("/m"))
        for device in ("cuda", "cpu")
    )
    assert alone.item_tokens == on_gpus.item_tokens == 8192
    assert on_cpus.item_tokens == 1024


def test_a_file_gives_the_run_and_an_option_another_model(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    config = planned_config([str(path), "model.freeze=[]"], model=None)
    assert config.model.folder == tmp_path / "small"
    assert (config.train.global_batch, config.model.freeze) == (6, ())
    assert planned_config([str(path)], model=Path("/other")).model.folder == Path("/other")


def test_a_preset_is_drawn_for_eight_steps_and_a_file_is_read_whole(tmp_path: Path) -> None:
    config = planned_config(["train.global_batch=4"], model=Path("/m"))
    assert len(planned_samples("native", config, seed=1)) == 32
    path = tmp_path / "lengths.jsonl"
    path.write_text("10\n" * 5)
    assert list(planned_samples(str(path), config, seed=1).tokens) == [10] * 5


def test_a_step_of_too_many_samples_is_an_error_before_samples_are_drawn() -> None:
    config = planned_config([f"train.global_batch={10**9}"], model=Path("/m"))
    with pytest.raises(ConfigError, match=r"train.global_batch=1000000000: .* at most 1048576 "):
        planned_samples("native", config, seed=0)
    with pytest.raises(ValueError, match="batch=1048577: it must be at most 1048576"):
        small_work(batch=MAX_BATCH + 1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (None, "give --workload with a preset or .* `flowtrain data check RUN.yaml`"),
        ("nativ", "--workload nativ: neither a file nor a preset; presets are tiles, native"),
        ("empty", "empty: the file has no samples"),
    ],
)
def test_without_samples_the_error_says_where_to_get_some(
    name: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").touch()
    with pytest.raises(ConfigError, match=said):
        planned_samples(name, planned_config([], model=Path("/m")), seed=0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give --model FOLDER with a config.json, or a run.yaml"),
        (["a.yaml", "b.yaml"], "a.yaml b.yaml: give one run.yaml; overrides have the form a.b="),
        (["a.yaml"], "there is no such file"),
    ],
)
def test_words_that_give_no_run_are_an_error(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        planned_config(words, model=None)


def test_an_unknown_field_among_the_words_is_an_error() -> None:
    with pytest.raises(ConfigError, match="train.globl_batch: there is no such field; did you"):
        planned_config(["train.globl_batch=96"], model=Path("/m"))


def test_budgets_double_up_to_the_last() -> None:
    found = gpu_budgets("4..48", parse_cluster("1x8xH100"))
    assert list(map(str, found)) == [
        "1x4xH100",
        "1x8xH100",
        "2x8xH100",
        "4x8xH100",
        "6x8xH100",
    ]


@pytest.mark.parametrize(
    ("text", "cluster", "said"),
    [
        ("8", "1x8xH100", "--gpus 8: write LOW..HIGH, such as 8..256"),
        ("16..8", "1x8xH100", "--gpus 16..8: write LOW..HIGH"),
        ("0..8", "1x8xH100", "--gpus 0..8: write LOW..HIGH"),
        ("8..20", "1x8xH100", "gpus=20: nodes of H100 have 8 GPUs"),
        ("8..16", "1x8xH100+1x8xA100", "cluster '.*' has several types of GPUs"),
    ],
)
def test_unusable_budgets_are_an_error(text: str, cluster: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        gpu_budgets(text, parse_cluster(cluster))
