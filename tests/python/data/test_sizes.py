"""Sizes that a check stores beside the data, and the commands that take them."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support import run_tree, write_tiny_data

from flowtrain.cli.main import main
from flowtrain.config import RunConfig, load
from flowtrain.config.data import DataConfig
from flowtrain.data.check import check_file
from flowtrain.data.errors import DataError
from flowtrain.data.records import Dataset
from flowtrain.data.sizes import DECIDING, read_sizes, sizes_path
from flowtrain.workloads import read_lengths


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, its data, and the sizes that a check has stored."""
    folder = tmp_path_factory.mktemp("checked")
    write_tiny_data(folder / "data", samples=24, text_only=0.3, multi_image=0.2)
    tree = run_tree(
        folder / "run",
        folder / "data",
        model={"config": "data/model", "compute_dtype": "bfloat16"},
        data={"path": "data/train.jsonl"},
        train={"global_batch": 512, "microbatch_tokens": 8192},
        flow={"item_tokens": 1024},
    )
    folder.joinpath("run.yaml").write_text(yaml.safe_dump(tree))
    lengths = ["--lengths", str(folder / "lengths.jsonl"), "--workers", "1"]
    assert main(["data", "check", str(folder / "run.yaml"), *lengths]) == 0
    return folder


@pytest.fixture
def folder(checked: Path, tmp_path: Path) -> Path:
    """A copy of that folder, which a test may change."""
    return shutil.copytree(checked, tmp_path / "moved")


def run(folder: Path, *overrides: str) -> RunConfig:
    return load(folder / "run.yaml", overrides)


def store(config: RunConfig) -> list[str | None]:
    return [source.sizes for source in check_file(config, workers=1, store_sizes=True).sources]


def test_stored_sizes_are_those_of_the_lengths_also_where_the_data_have_moved(folder: Path) -> None:
    stored, lengths = read_sizes(run(folder)), read_lengths(folder / "lengths.jsonl")
    assert stored.name == "train.jsonl" and len(stored) == 24
    for name in ("tokens", "visual_tokens", "cost", "encoder_cost", "images"):
        assert np.array_equal(getattr(stored, name), getattr(lengths, name)), name
    # Fields that decide no sizes.
    read_sizes(run(folder, "train.seed=7", "data.bad_image=skip", "optim.lr=0.1"))


def test_a_limit_decides_the_sizes_only_of_samples_that_exceed_it(folder: Path) -> None:
    whole = read_sizes(run(folder)).tokens
    longest = int(whole.max())
    for limit in (longest, 9999):
        config = run(folder, f"train.microbatch_tokens={limit}", "data.oversize=drop")
        assert np.array_equal(read_sizes(config).tokens, whole)
    limit = f"train.microbatch_tokens={longest - 1}"
    with pytest.raises(DataError, match=rf"{limit[:22]}.*=8192 \(now {longest - 1}\)"):
        read_sizes(run(folder, limit))
    store(run(folder, limit, "data.oversize=drop"))
    assert len(read_sizes(run(folder, limit, "data.oversize=drop"))) < len(whole)
    # A sample was left out, so that no other limit and rule gives these sizes.
    changes = r"data\.oversize='drop' \(now 'error'\), train\.microbatch_tokens="
    with pytest.raises(DataError, match=changes):
        read_sizes(run(folder))


FIELDS = {
    "data.ignore=[height,id]": "data.ignore=[] (now ['height', 'id'])",
    "data.min_pixels=64": "data.min_pixels=None (now 64)",
    "data.max_pixels=4096": "data.max_pixels=None (now 4096)",
    "data.video_fps=2": "data.video_fps=None (now 2",
    "data.video_max_frames=9": "data.video_max_frames=None (now 9)",
    "data.video_max_pixels=4096": "data.video_max_pixels=None (now 4096)",
    "data.image_root={folder}/data/images": "data.image_root='.' (now 'images')",
    "train.microbatch_tokens=9": "train.microbatch_tokens=8192 (now 9)",
    "flow.mode=frozen": "(by model.freeze and flow.mode)='encoder' (now 'backbone')",
}


@pytest.mark.parametrize(("override", "said"), FIELDS.items())
def test_a_field_that_decides_sizes_is_named(checked: Path, override: str, said: str) -> None:
    config = run(checked, override.format(folder=checked))
    with pytest.raises(DataError, match=re.escape(said)) as raised:
        read_sizes(config)
    assert str(raised.value).startswith(f"{checked}/data/train.jsonl.sizes: the sizes are not")
    assert "run `flowtrain data check RUN.yaml`" in str(raised.value)
    # Nothing else has changed.
    assert str(raised.value).count(" (now ") == 1 and "contents" not in str(raised.value)


def test_every_field_of_data_decides_sizes_or_does_not() -> None:
    others = {"workers", "shuffle", "bad_image"}
    compared = {"path", "dataset", "sources", "image_root"}  # By their contents.
    fields = {field.name for field in dataclasses.fields(DataConfig)}
    assert fields == {*DECIDING, *others, *compared}


def grown(folder: Path) -> None:
    path = folder / "data/train.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")


def edited(name: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "data/model" / name
        path.write_text(path.read_text() + "\n")

    return edit


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (grown, "these changed: the contents of the data set; "),
        (edited("tokenizer.json"), "these changed: the contents of the model's tokenizer.json; "),
        (edited("chat_template.jinja"), "the contents of the model's chat_template.jinja; "),
    ],
)
def test_changed_contents_are_named_until_the_next_check(
    folder: Path, change: Callable[[Path], None], said: str
) -> None:
    change(folder)
    with pytest.raises(DataError, match=re.escape(said)):
        read_sizes(run(folder))
    [written] = store(run(folder))
    assert written == str(folder / "data/train.jsonl.sizes")
    assert len(read_sizes(run(folder))) == len(Dataset(run(folder).data))


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    """A value of the first array is another one."""
    place = content.index(b"NUMPY") + 140
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("damage", [cut, flipped, lambda content: b""])
def test_a_damaged_file_is_refused(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    path = folder / "data/train.jsonl.sizes"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"train\.jsonl\.sizes: the file is damaged \(.*data check"):
        read_sizes(run(folder))


def test_a_check_that_cannot_write_says_so_and_keeps_the_older_file(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (folder / "data/train.jsonl.sizes").read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", fail)
    assert main(["data", "check", str(folder / "run.yaml"), "--workers", "1"]) == 0
    printed = capsys.readouterr()
    path = folder / "data/train.jsonl.sizes"
    reason = f"{path} cannot be written (No space left on device)"
    assert printed.err == f"flowtrain: sizes are not stored: {reason}\n"
    assert "sizes of the good samples" not in printed.out
    assert path.read_bytes() == before
    assert not [*path.parent.glob("*.part")]


def test_a_model_that_changes_during_the_check_leaves_no_sizes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "data/train.jsonl.sizes").unlink()
    found = check_file(
        run(folder),
        workers=1,
        store_sizes=True,
        progress=lambda done, total: edited("tokenizer.json")(folder),
    )
    [source] = found.sources
    assert source.sizes is None
    assert source.sizes_error == "the model's tokenizer.json changed during the check"
    with pytest.raises(DataError, match=r"sizes: there is no such file, .* `flowtrain data check"):
        read_sizes(run(folder))


def test_sources_and_patterns_have_files_of_their_own_and_weights_count(folder: Path) -> None:
    lines = (folder / "data/train.jsonl").read_text().splitlines(keepends=True)
    shards = folder / "data/shards"
    shards.mkdir()
    for shard in range(2):
        (shards / f"part-{shard}.jsonl").write_text("".join(lines[shard * 5 : shard * 5 + 5]))
    images = f"image_root: {folder / 'data'}"
    sources = (
        f"data={{{images}, sources: [{{path: {folder / 'data/train.jsonl'}, weight: 0.5}}, "
        f"{{path: '{shards}/part-*', weight: 2}}]}}"
    )
    config = run(folder, sources)
    alone = read_sizes(run(folder)).tokens
    stored = store(config)
    assert stored == [str(folder / "data/train.jsonl.sizes"), str(shards / "part-_.sizes")]
    # The file of sizes has a name of the pattern, and is no data.
    assert Dataset(config.data).sizes == [24, 10]
    assert store(config) == stored
    found = read_sizes(config)
    assert found.tokens.tolist() == [*alone[::2], *np.repeat(alone[:10], 2)]
    assert found.name == "data.sources"


def rows() -> list[Any]:
    message = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}]
    return [{"messages": message}]


def test_python_data_sets_have_no_sizes(checked: Path) -> None:
    config = run(checked, "data.path=null", f"data.dataset={__name__}:rows")
    assert store(config) == [None]
    with pytest.raises(DataError, match="of a Python data set are not stored, .*--lengths FILE"):
        read_sizes(config)


def test_sizes_of_a_folder_are_not_in_it() -> None:
    # A folder of `save_to_disk` is hashed with all its files.
    assert sizes_path(Path("/data/saved")) == Path("/data/saved.sizes")


def test_pack_and_plan_take_the_sizes_of_a_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, lengths = str(folder / "run.yaml"), str(folder / "lengths.jsonl")

    def packed(*trace: str) -> list[Any]:
        limits = ["--ranks", "2", "--max-tokens", "200", "--policy", "in-order", "--json"]
        assert main(["pack", trace[0], *limits, *trace[1:]]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return [{**row, "milliseconds": 0} for row in rows]

    def planned(*options: str) -> Any:
        assert main(["plan", config, "--cluster", "1x2xH100", *options, "--json"]) == 0
        return json.loads(capsys.readouterr().out)["best"]["step_s"]

    assert packed(config) == packed(lengths)
    assert capsys.readouterr().err == ""
    data = folder / "data/train.jsonl"
    whole = data.read_text()
    data.write_text(whole + "{}\n" * 2)
    store(run(folder))
    assert main(["pack", config, "--ranks", "2", "--max-tokens", "200", "--json"]) == 0
    said = "flowtrain: train.jsonl: left out 2 bad samples, which `flowtrain data check` lists"
    assert capsys.readouterr().err.startswith(said)
    plan = ["plan", config, "--cluster", "1x2xH100"]
    assert main([*plan, "--json"]) == main(plan) == 0
    tree, text = capsys.readouterr().out.split("\n", 1)
    assert json.loads(tree)["question"]["bad_samples"] == 2
    assert text.splitlines()[1] == "left out: 2 bad samples, which `flowtrain data check` lists"
    data.write_text(whole)
    store(run(folder))
    assert planned() == planned("--workload", lengths)
    for command, *options in (
        ["pack", "--ranks", "2", "--max-tokens", "200"],
        ["plan", "--cluster", "1x2xH100"],
    ):
        assert main([command, config, "data.max_pixels=4096", *options]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "data.max_pixels=None (now 4096)" in said
    assert main(["pack", lengths, "--ranks", "2", "--max-tokens", "200", "train.seed=1"]) == 2
    assert "train.seed=1: overrides change a run.yaml, and" in capsys.readouterr().err
