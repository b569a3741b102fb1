"""Bad input ends a run with one line that names the object, the value and the limit."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from forked_ranks import failure, trained
from support import Run, nothing_left, run_tree


def broken(data: Path, folder: Path, *changes: dict[str, object], first: int = 5) -> Path:
    """A data file with the images of `data`, in which the lines from `first` on are changed."""
    lines = [json.loads(line) for line in (data / "train.jsonl").read_text().splitlines()]
    for line in lines:
        line["images"] = [str(data / path) for path in line["images"]]
    for number, change in enumerate(changes, first):
        lines[number] = {**lines[number], **change}
    path = folder / "broken.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def strip(path: Path) -> dict[str, object]:
    """A sample with one image."""
    turns = [
        {"role": "user", "content": "<image>Read the digits."},
        {"role": "assistant", "content": "1"},
    ]
    return {"messages": turns, "images": [str(path)]}


def test_a_missing_image_is_named_with_its_line(tmp_path: Path, data: Path) -> None:
    path = broken(data, tmp_path, strip(tmp_path / "gone.png"))
    tree = run_tree(tmp_path / "run", data, data={"path": str(path), "shuffle": False})
    with nothing_left():
        code, errors = Run(tree).wait()
    assert code == 1
    assert f"{path}:6: image {tmp_path / 'gone.png'}: there is no such file" in errors
    _, _, log = errors.partition("; the log of ")[2].partition(".0 is ")
    assert "Traceback" in Path(log.strip()).read_text()


def cut_image(data: Path, folder: Path) -> Path:
    """An image file with a valid header that is cut short."""
    whole = next((data / "images" / "train").glob("*.png")).read_bytes()
    cut = folder / "cut.png"
    cut.write_bytes(whole[: len(whole) - 40])
    return cut


# The planner reads headers, encoder ranks read pixels; both are ahead of the step that closes.
@pytest.mark.parametrize(
    ("mode", "image"),
    [
        ("frozen", "gone.png"),
        pytest.param("strict", "gone.png", marks=pytest.mark.deep),
        pytest.param("bounded", "gone.png", marks=pytest.mark.deep),
        pytest.param("frozen", "cut.png", marks=pytest.mark.deep),
        pytest.param("bounded", "cut.png", marks=pytest.mark.deep),
    ],
)
def test_the_steps_before_a_bad_image_are_trained_and_saved(
    mode: str, image: str, tmp_path: Path, data: Path
) -> None:
    cut = cut_image(data, tmp_path)
    path = broken(data, tmp_path, strip(tmp_path / image), first=5 * 8)
    tree = run_tree(
        tmp_path / "run",
        data,
        data={"path": str(path), "shuffle": False},
        train={"steps": 8},
        checkpoint={"every": 5},
        flow={
            "encoder_ranks": 2,
            "mode": mode,
            "staleness": int(mode == "bounded"),
            "plan_ahead": 8,
        },
        pool={"scale": 64.0},
        # The backbone rank waits before each slot, or for seconds, so that encoders run ahead.
        debug={"fault": "faults:pause:backbone.0"} if image == cut.name else {"delay_ms": 20.0},
    )
    errors = failure(tree)
    assert f"{path}:41: image {tmp_path / image}: " in errors
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in metrics] == [0, 1, 2, 3, 4]
    assert (tmp_path / "run" / "checkpoints" / "step-00000005" / "mark.json").exists()


@pytest.mark.deep
def test_a_rank_that_cannot_write_its_edges_ends_no_step(tmp_path: Path, data: Path) -> None:
    tree = run_tree(
        tmp_path / "run",
        data,
        flow={"encoder_ranks": 2, "mode": "frozen", "plan_ahead": 8},
        pool={"scale": 64.0},
        debug={"fault": "faults:pause:backbone.0"},
    )
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "edges").touch()
    assert "File exists" in failure(tree)
    assert (tmp_path / "run" / "checkpoints" / "step-00000004" / "mark.json").exists()


def test_bad_images_are_named_or_skipped(tmp_path: Path, data: Path) -> None:
    cut = cut_image(data, tmp_path)
    path = broken(data, tmp_path, strip(cut))
    section = {"path": str(path), "shuffle": False}
    errors = failure(run_tree(tmp_path / "run", data, data=section))
    assert f"{path}:6: image {cut}" in errors
    text = tmp_path / "text.png"
    text.write_text("<html>")
    broken(data, tmp_path, strip(cut), strip(tmp_path / "gone.png"), strip(text))
    skipping = {**section, "bad_image": "skip"}
    metrics = trained(run_tree(tmp_path / "skip", data, data=skipping))
    assert [step["skipped_samples"] for step in metrics] == [3, 0, 0, 0]
    # Skipped samples do not count: the step is that of the five other samples.
    first = json.loads((tmp_path / "skip" / "plan.log").read_text().splitlines()[0])
    documents = [doc for rank in first["documents"] for slot in rank for doc in slot]
    targets = sum(doc["num_targets"] for doc in documents if doc["sample"] not in (5, 6, 7))
    assert metrics[0]["target_tokens"] == targets


def test_a_skipped_sample_counts_as_often_as_it_is_drawn(tmp_path: Path, data: Path) -> None:
    path = tmp_path / "two.jsonl"
    whole = next((data / "images" / "train").glob("*.png")).resolve()
    lines = [strip(whole), strip(tmp_path / "gone.png")]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    section = {"path": str(path), "bad_image": "skip"}
    tree = run_tree(tmp_path / "run", data, data=section, train={"steps": 1})
    [step] = trained(tree)
    assert (sorted(step["samples"]), step["skipped_samples"]) == ([0] * 4 + [1] * 4, 4)


def test_long_samples_are_truncated_or_dropped_and_counted(tmp_path: Path, data: Path) -> None:
    image = str(next((data / "images" / "train").glob("*.png")).resolve())
    asked = {"role": "user", "content": "<image>Read." + "?" * 300}
    told = {"role": "assistant", "content": "1" * 300 + "<image>"}
    answered = [{"role": "user", "content": "<image>Read."}, told]
    path = broken(
        data,
        tmp_path,
        {"messages": answered, "images": [image, image]},
        {"messages": [asked, told], "images": [image, image]},
    )
    section = {"path": str(path), "shuffle": False, "oversize": "truncate"}
    metrics = trained(run_tree(tmp_path / "run", data, data=section))
    # The first keeps an image and part of its answer, the second nothing of its answer.
    assert [step["truncated_samples"] for step in metrics] == [1, 0, 0, 0]
    assert [step["dropped_samples"] for step in metrics] == [1, 0, 0, 0]
    assert metrics[0]["samples"] == [0, 1, 2, 3, 4, 5, 7, 8]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["truncated_samples"], summary["dropped_samples"]) == (1, 1)


def test_the_error_of_a_small_pool_names_the_missing_bytes(tmp_path: Path, data: Path) -> None:
    errors = failure(run_tree(tmp_path / "run", data, pool={"bytes": 8192}))
    assert "pool.bytes=8192" in errors
    assert "bytes are missing" in errors


def test_a_slab_smaller_than_a_row_is_refused(tmp_path: Path, data: Path) -> None:
    # With one decoder layer, a row has the feature and one of the two deepstack taps.
    wide = {"slab_bytes": 4096}
    tree = run_tree(tmp_path / "run", data, pool=wide)
    config = Path(tree["model"]["config"]) / "config.json"
    folder = tmp_path / "model"
    folder.mkdir()
    for file in config.parent.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    raw = json.loads(config.read_text())
    raw["text_config"].update(hidden_size=2048, num_hidden_layers=1)
    raw["vision_config"]["out_hidden_size"] = 2048
    (folder / "config.json").write_text(json.dumps(raw))
    tree["model"]["config"] = str(folder)
    assert "pool.slab_bytes=4096: the row of one image token takes 16384 bytes" in failure(tree)


def test_a_diverging_run_aborts_on_every_rank(tmp_path: Path, data: Path) -> None:
    tree = run_tree(tmp_path / "run", data, optim={"lr": 1e30, "clip_norm": None})
    errors = failure(tree)
    assert "not finite; lower optim.lr" in errors


def test_a_run_whose_samples_are_all_skipped_fails(tmp_path: Path, data: Path) -> None:
    path = broken(data, tmp_path, *16 * [strip(tmp_path / "gone.png")], first=0)
    sections = {"path": str(path), "bad_image": "skip", "shuffle": False}
    errors = failure(run_tree(tmp_path / "run", data, data=sections, train={"steps": 2}))
    assert "steps 0 to 1: none of their 16 samples has a target token" in errors
    assert "check the paths and data.image_root" in errors


def test_a_port_in_use_is_refused(tmp_path: Path, data: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        errors = failure(run_tree(tmp_path / "run", data, flow={"port": port}))
    assert f"flow.port={port}" in errors
    assert "choose another port" in errors


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path: Path, data: Path) -> None:
    tree = run_tree(tmp_path / "run", data)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    assert "holds a run already; choose another folder, or go on with it: --res" in failure(tree)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == "{}\n"


def test_an_unknown_model_is_refused(tmp_path: Path, data: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "nosuch"}')
    errors = failure(run_tree(tmp_path / "run", data, model={"config": str(folder)}))
    assert "model_type=nosuch has no family; choose a model of qwen3_vl, qwen3_vl_moe" in errors
