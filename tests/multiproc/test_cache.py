"""Runs with a cache of features have the numbers of a run that encodes each image alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from forked_ranks import failure, trained
from parity import MODELS, VIDEO_TOKENS, add_videos
from parity_matrix import FAMILIES, VIDEO_MODELS
from support import Run, one_thread, run_tree

from flowtrain.cache import CacheError
from flowtrain.cli.main import main
from flowtrain.data.digits import write_digits
from flowtrain.models.tiny import SMALLEST


def write_data(folder: Path, model: str) -> Path:
    """Samples with no, one and several images, and videos if the family has any."""
    write_digits(
        folder,
        train=18,
        heldout=2,
        seed=3,
        text_only=0.2,
        multi_image=0.3,
        sizes=SMALLEST,
        family=MODELS[model],
    )
    if model in VIDEO_MODELS:
        add_videos(folder / "train.jsonl")
    return folder


class Runs:
    """Runs of two and a half epochs, which differ in section `flow`."""

    def __init__(self, folder: Path, model: str, **flow: Any) -> None:
        self.folder = folder
        self.data = write_data(folder / "data", model)
        self.tokens = 160 * VIDEO_TOKENS.get(model, 2)
        self.flow = {"mode": "frozen", **flow}
        # Otherwise the times of a tiny model would decide what is fetched.
        self.cache = {"path": str(folder / "cache"), "fetch": "always"}
        self.freeze: list[str] = []

    def tree(self, name: str, *, debug: Any = None, **flow: Any) -> dict[str, Any]:
        return run_tree(
            self.folder / name,
            self.data,
            model={"freeze": self.freeze},
            data={"bad_image": "skip"},
            train={"steps": 5, "global_batch": 9, "microbatch_tokens": self.tokens},
            flow={**self.flow, **flow},
            **({} if debug is None else {"debug": debug}),
        )

    def run(self, name: str, **flow: Any) -> Path:
        trained(self.tree(name, **flow))
        return self.folder / name


def counts(run: Path) -> tuple[int, int]:
    """Hits and misses of a run."""
    lines = [json.loads(line) for line in (run / "timing.jsonl").read_text().splitlines()]
    summary = json.loads((run / "summary.json").read_text())
    found = [sum(line[name] for line in lines) for name in ("cache_hits", "cache_misses")]
    assert found == [summary["cache_hits"], summary["cache_misses"]]
    return found[0], found[1]


def command(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Any:
    """What `flowtrain cache` prints as its last line."""
    with one_thread():
        assert main(["cache", *map(str, words)]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    return json.loads(line) if line.startswith("{") else line


def results(run: Path) -> tuple[list[dict[str, Any]], bytes]:
    """Metrics without what says how images form items, and the final weights."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["weight_ages"], line["packing"]
    return lines, (run / "final" / "model.safetensors").read_bytes()


def test_images_and_videos_that_are_stored_change_no_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Runs(tmp_path, "qwen3-vl", encoder_ranks=2, backbone_ranks=2)
    bad = next(
        line["images"][0]
        for line in map(json.loads, (runs.data / "train.jsonl").read_text().splitlines())
        if len(line.get("images", ())) == 1
    )
    (runs.data / bad).write_bytes(b"no image")
    # An item has one image.
    plain = runs.run("plain", item_tokens=1)
    skipped = sum(line["skipped_samples"] for line in results(plain)[0])
    fills = runs.run("fills", cache=runs.cache)
    hits, misses = counts(fills)
    assert hits > 0 and misses > skipped > 0

    # `fill` computes what the run has stored, and stores what a run looks up.
    cache, config = tmp_path / "cache", tmp_path / "filled.yaml"
    config.write_text(yaml.safe_dump(runs.tree("filled", cache=runs.cache)))
    filled = command(capsys, "fill", config, "--workers", "0")
    assert filled["encoded"] == 0 < filled["found"] and filled["left_out"] == 1
    shown = command(capsys, "show", cache, "--json")
    assert (shown["hits"], shown["misses"]) == (hits, misses - skipped)
    assert command(capsys, "clear", config) == f"freed {shown['bytes']:,} bytes"
    again = command(capsys, "fill", config, "--workers", "0")
    assert again["encoded"] + again["found"] == filled["found"] and again["left_out"] == 1

    [context] = [path for path in cache.iterdir() if path.is_dir()]
    with (context / "0.dat").open("r+b") as file:
        first = file.read(1)
        file.seek(0)
        file.write(bytes([first[0] ^ 1]))
    finds = runs.run("finds", cache=runs.cache)
    # Zeros in the place of a bad image are not stored, and the damaged features are stored again;
    # by then the image may have been read for a second time.
    found, missed = counts(finds)
    assert found + missed == hits + misses and skipped < missed <= skipped + 2
    for cached in (fills, finds):
        assert results(cached) == results(plain)
    # Where nothing can be stored, numbers are the same to the last byte of the log.
    full = runs.run("full", cache={"path": str(tmp_path / "full-cache"), "max_bytes": 1})
    assert counts(full) == (0, hits + misses)
    # If the disk is slow, its use ends after the first step, and changes no number either.
    slow = runs.run(
        "slow", cache={"path": runs.cache["path"]}, debug={"fault": "faults:slow_features"}
    )
    assert 0 < counts(slow)[0] < hits
    logs = [(run / "metrics.jsonl").read_bytes() for run in (fills, finds, full, slow)]
    assert logs[0] == logs[1] == logs[2] == logs[3]


LAYOUTS: tuple[dict[str, int], ...] = ({"ranks": 2}, {"encoder_ranks": 1, "backbone_ranks": 2})
# Of each family, the layout in which the projector trains is the other one than in the next family.
ROWS = [
    (model, freeze, LAYOUTS[(number + len(freeze)) % 2])
    for number, model in enumerate(FAMILIES)
    for freeze in ([], ["projector"])
]


@pytest.mark.deep
@pytest.mark.parametrize(("model", "freeze", "layout"), ROWS)
def test_no_family_has_other_numbers_with_a_cache(
    model: str, freeze: list[str], layout: dict[str, int], tmp_path: Path
) -> None:
    runs = Runs(tmp_path, model, **layout)
    runs.freeze = freeze
    plain = runs.run("plain", item_tokens=1)
    fills = runs.run("fills", cache=runs.cache)
    finds = runs.run("finds", cache=runs.cache)
    hits, misses = counts(fills)
    assert hits > 0 and misses > 0
    assert counts(finds) == (hits + misses, 0)
    assert results(fills) == results(finds) == results(plain)
    assert (fills / "metrics.jsonl").read_bytes() == (finds / "metrics.jsonl").read_bytes()


@pytest.mark.deep
def test_two_runs_at_once_share_a_cache_and_a_killed_one_leaves_it_usable(tmp_path: Path) -> None:
    runs = Runs(tmp_path, "qwen3-vl", encoder_ranks=1, backbone_ranks=1)
    plain = results(runs.run("plain", item_tokens=1))
    killed = Run(runs.tree("killed", cache=runs.cache))
    killed.wait_for_steps(2)
    killed.kill_all()
    both = [Run(runs.tree(name, cache=runs.cache)) for name in "ab"]
    for run in both:
        run.succeed()
        assert results(run.folder) == plain
    [context] = [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    assert len(list(context.glob("*.idx"))) <= 2
    data = max(context.glob("*.dat"), key=lambda path: path.stat().st_size)
    data.write_bytes(bytes(byte ^ 255 for byte in data.read_bytes()))
    finds = Run(runs.tree("finds", cache=runs.cache))
    code, errors = finds.wait()
    assert code == 0 and results(finds.folder) == plain
    assert 0 < counts(finds.folder)[1] < sum(counts(finds.folder))
    # The launcher says what its ranks have told.
    assert f"cache: {data}: the " in errors


def test_dropout_in_the_tower_and_a_folder_of_others_are_refused(tmp_path: Path) -> None:
    runs = Runs(tmp_path, "qwen3-vl")
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").touch()
    with pytest.raises(CacheError, match=r"thesis\.tex"):
        trained(runs.tree("a", cache={"path": str(other)}))
    config = runs.data / "model" / "config.json"
    fields = json.loads(config.read_text())
    fields["vision_config"]["attention_dropout"] = 0.1
    config.write_text(json.dumps(fields))
    assert "vision_config.attention_dropout=0.1" in failure(runs.tree("b", cache=runs.cache))
