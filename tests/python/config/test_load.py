from __future__ import annotations

from pathlib import Path

import pytest

from flowtrain.config import ConfigError, dump, from_dict, load

TEXT = """
run: out
model: {config: model}
data: {path: train.jsonl}
train: {steps: 3}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(TEXT)
    return path


def test_paths_start_from_the_file_and_overrides_win(file: Path) -> None:
    config = load(file, ["train.steps=7", "optim.lr=2e-3", "flow.encoder_ranks=2"])
    assert config.data.path == file.parent / "train.jsonl"
    assert (config.train.steps, config.optim.lr, config.flow.encoder_ranks) == (7, 2e-3, 2)


def test_paths_in_overrides_start_from_the_working_directory(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    given = ["run=r", "data.path=d/train.jsonl", "data.image_root=.", "model={path: ../m}"]
    config = load(file, given)
    assert config.run == folder / "r"
    assert config.data.path == folder / "d/train.jsonl"
    assert config.data.image_root == folder
    assert config.model.path == folder / "../m"


def test_paths_of_sources_start_from_the_file_and_from_the_working_directory(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    file.write_text(TEXT.replace("path: train.jsonl", "sources: [{path: a.jsonl, image_root: b}]"))
    [source] = load(file).data.sources
    assert (source.path, source.root) == (tmp_path / "a.jsonl", tmp_path / "b")
    [source] = load(file, ["data.sources=[{path: a.jsonl, weight: 2}]"]).data.sources
    assert (source.path, source.root, source.weight) == (folder / "a.jsonl", folder, 2.0)


def test_a_dumped_configuration_means_the_same_files_in_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tree = {"run": "r", "model": {"config": "m"}, "data": {"path": "d"}, "train": {"steps": 3}}
    copy = tmp_path / "r" / "config.yaml"
    copy.parent.mkdir()
    copy.write_text(dump(from_dict(tree)))
    monkeypatch.chdir("/")
    config = load(copy)
    assert (config.run, config.model.config) == (tmp_path / "r", tmp_path / "m")
    assert config.data.path == tmp_path / "d"


def test_a_dumped_configuration_loads_to_the_same(file: Path, tmp_path: Path) -> None:
    sources = "data={sources: [{path: a.jsonl, weight: 0.5}, {dataset: 'b:make'}]}"
    given = ["optim.betas=[0.9, 0.95]", "model.freeze=[encoder]", "flow.mode=frozen", sources]
    config = load(file, given)
    copy = tmp_path / "copy.yaml"
    copy.write_text(dump(config))
    assert load(copy) == config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.stps=3", r"train\.stps: there is no such field; did you mean steps\?"),
        ("train.steps=many", r"train\.steps='many'"),
        ("train.steps=0", r"train\.steps=0, train\.epochs=0: give exactly one of the two"),
        ("train.epochs=2", r"train\.steps=3, train\.epochs=2: give exactly one of the two"),
        ("flow.mode=loose", r"flow\.mode='loose'"),
        ("flow.staleness=2", r"flow\.staleness=2 with flow\.mode=strict"),
        ("train=3", r"train=3: it must be a mapping of fields"),
        ("model.path=other", "give exactly one of the two"),
        ("data.sources=[{path: a}]", r"data\.sources=\[.*/a\]: give exactly one of the three"),
        ("data={sources: [{path: a, wieght: 2}]}", r"data\.sources\.0\.wieght: there is no such"),
        ("data={sources: [a.jsonl]}", r"data\.sources\.0='a\.jsonl': it must be a mapping"),
        ("train.steps", "write it as field.name=value"),
        ("model.freeze=[encoder]", "set flow.mode to frozen"),
        ("flow.cache.path=c", r"flow\.cache\.path=.*c with flow\.mode=strict: .*set flow\.mode to"),
        ("flow.cache.max_bytes=9", r"flow\.cache\.max_bytes=9 without flow\.cache\.path"),
        (
            "model.dtype=bfloat16",
            "bfloat16 weights lose small updates; set model.dtype=float32 and",
        ),
        (
            "model.compute_dtype=float64",
            "model.compute_dtype=float64 with model.dtype=float32: .* set model.dtype=float64, or",
        ),
        ("train.steps=true", r"train\.steps=True: it must be a number"),
        ("train.seed=-1", r"train\.seed=-1: it must be at least 0"),
        ("train.threads=-1", r"train\.threads=-1: it must be from 0 to 1024"),
        ("optim.lr=.inf", r"optim\.lr=inf: it must be greater than 0, and finite"),
        ("optim.weight_decay=-0.1", r"optim\.weight_decay=-0\.1: it must be 0 or more"),
        ("optim.betas=[0.9, 1]", r"optim\.betas=\[0\.9, 1\.0\]: each must be"),
        ("optim.warmup_steps=3", r"optim\.warmup_steps=3: it must be less than train\.steps=3"),
        ("optim.schedule_steps=2", r"schedule_steps=2: it must be at least train\.steps=3; raise"),
        ("optim.schedule_steps=0", r"optim\.schedule_steps=0: it must be greater than 0"),
        (
            "optim={schedule_steps: 9, warmup_steps: 9}",
            r"optim\.warmup_steps=9: it must be less than optim\.schedule_steps=9",
        ),
        ("optim.min_lr_ratio=0.1", r"min_lr_ratio=0\.1 with optim\.schedule=constant: only linear"),
        ("optim={schedule: cosine, min_lr_ratio: 2}", r"min_lr_ratio=2\.0: it must be from 0 to 1"),
        ("optim.groups=[{lr: 1}]", r"optim\.groups\.0\.match is missing"),
        ("optim.groups=[{match: a, rate: 1}]", r"optim\.groups\.0\.rate: there is no such field"),
        ("optim.groups=[{match: a, lr: 0}]", r"optim\.groups\.lr=0\.0: it must be greater than 0"),
        ("optim.warmup_steps=-1", r"optim\.warmup_steps=-1: it must be 0 or more"),
        ("flow.staleness=-1", r"flow\.staleness=-1: it must be 0 or more"),
        (
            "parallel.encoder={shard_ranks: 2}",
            r"parallel\.encoder\.shard_ranks=2 with sharding=replicated: nothing is divided",
        ),
        (
            "parallel.backbone={recompute_layers: 2}",
            r"parallel\.backbone\.recompute_layers=2 with recompute=none: set recompute to full or",
        ),
        ("flow.port=65536", r"flow\.port=65536"),
        ("flow.timeout_s=.inf", r"flow\.timeout_s=inf"),
        ("pool.bytes=0", r"pool\.bytes=0: it must be greater than 0"),
        (
            "pool={bytes: 40960, slab_bytes: 4096, max_cells: 9}",
            r"pool\.slab_bytes=4096: 10 slabs are more than pool\.max_cells=9; raise pool",
        ),
        ("optim.momentum=0.9", r"optim\.momentum=0\.9 with optim\.name=adamw: .* leave optim\.mom"),
        ("optim={name: sgd, eps: 0.1}", r"optim\.eps=0\.1 with optim\.name=sgd: only AdamW"),
        ("lora.dropout=0.1", r"lora\.dropout=0\.1: no part has adapters; set lora\.backbone\.rank"),
        ("eval.samples=3", r"eval\.samples=3: there is nothing to evaluate; give eval\.path"),
        ("run=~nobodyx/a", r"^run=~nobodyx/a: there is no such user"),
        ("debug.delay_ms=-1", r"debug\.delay_ms=-1\.0: it must be 0 or more"),
    ],
)
def test_an_error_names_the_field(file: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(file, [override])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["flow.mode=bounded", "flow.staleness=1", "parallel.encoder.sharding=full"],
            r"parallel\.encoder\.sharding=full with flow\.mode=bounded: .*set it to replicated",
        ),
        (
            ["flow.mode=frozen", "parallel.encoder.sharding=full", "flow.cache.path=c"],
            r"parallel\.encoder\.sharding=full with flow\.cache\.path=.*set it to replicated",
        ),
        (
            ["flow.mode=frozen", "parallel.encoder.sharding=optimizer"],
            r"parallel\.encoder\.sharding=optimizer: nothing of the encoder trains",
        ),
        (
            ["flow.ranks=6", "parallel.backbone={sharding: full, shard_ranks: 4}"],
            r"parallel\.backbone\.shard_ranks=4: it must divide the 6 ranks of the backbone",
        ),
    ],
)
def test_sharding_that_a_run_cannot_have_is_refused(
    file: Path, overrides: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(file, overrides)


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("model: {config: model}\ndata: {path: x}\ntrain: {steps: 1}\n")
    with pytest.raises(ConfigError, match="run is missing"):
        load(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT + "train: {steps: 5}\n", r"run\.yaml: .*train is given twice"),
        (TEXT.replace("steps: 3", "steps: 3, steps: 5"), r"steps is given twice"),
        (TEXT + "debug: {fault: \xe9}\n", r"run\.yaml: not YAML"),
    ],
)
def test_a_file_that_would_lose_a_value_is_refused(file: Path, text: str, message: str) -> None:
    file.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=message):
        load(file)


def test_a_merged_section_may_be_overridden(file: Path) -> None:
    file.write_text(TEXT.replace("{steps: 3}", "{<<: {steps: 3, seed: 4}, steps: 5}"))
    config = load(file)
    assert (config.train.steps, config.train.seed) == (5, 4)


def test_a_device_that_there_is_not_is_refused(file: Path) -> None:
    with pytest.raises(ConfigError, match="model.device='tpu': .*'cpu' or 'cuda'"):
        load(file, ["model={config: m, device: tpu}"])


def test_a_folder_in_the_place_of_a_file_is_named_with_advice(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^{tmp_path}: it is a folder, and a file is expected$"):
        load(tmp_path)
    (tmp_path / "config.yaml").touch()
    with pytest.raises(ConfigError, match=rf"expected; give {tmp_path}/config\.yaml, with --resu"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.yaml", "# no field\n", r"run\.yaml: the file is empty; write fields"),
        ("train.jsonl", '{"messages": []}\n' * 2, "holds data; give a run.yaml that names it"),
    ],
)
def test_a_file_that_is_no_configuration_is_told_from_one_with_an_error(
    name: str, text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load(path)
