"""A run on a stream is the run on a file with the same records, also if it was killed."""

from __future__ import annotations

import importlib
import json
import os
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from forked_ranks import failure, trained
from support import Run, run_tree

from flowtrain.events import TRACKS, read_run

STEPS, BATCH, EPOCH, HELD_AT = 12, 5, 24, 50

# A stream that is slow, so that a run reads it in pieces, and that can be held, so that a run is
# killed before it has read all that it needs.
SOURCE = """
import json, time
from pathlib import Path

FOLDER = Path(__file__).parent / "shards"
READ = []

def slowly(row):
    time.sleep(0.05)
    READ.append(None)
    while len(READ) > HELD_AT and FOLDER.with_name("held").exists():
        time.sleep(0.02)
    return row

class Rows:
    def __iter__(self):
        for file in sorted(FOLDER.glob("*.jsonl")):
            yield from map(slowly, map(json.loads, file.read_text().splitlines()))

class WithImages(Rows):
    def __iter__(self):
        for row in super().__iter__():
            yield {**row, "images": [(DATA / name).read_bytes() for name in row["images"]]}

def hugging_face():
    import datasets
    files = sorted(map(str, FOLDER.glob("*.jsonl")))
    rows = datasets.load_dataset("json", data_files=files, split="train", streaming=True)
    return rows.map(slowly)
"""


@pytest.fixture
def source(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module with functions that return streams of the same records."""
    name = f"rows_of_{tmp_path.name}"
    constants = f"\nDATA, HELD_AT = Path({str(data)!r}), {HELD_AT}\n"
    tmp_path.joinpath(f"{name}.py").write_text(SOURCE + constants)
    monkeypatch.syspath_prepend(tmp_path)
    paths = filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    lines = data.joinpath("train.jsonl").read_text().splitlines(keepends=True)[:EPOCH]
    tmp_path.joinpath("shards").mkdir()
    for shard, (first, end) in enumerate(pairwise((0, 7, 20, EPOCH))):
        tmp_path.joinpath(f"shards/{shard}.jsonl").write_text("".join(lines[first:end]))
    return importlib.import_module(name)


def write_epochs(file: Path, rows: Any) -> None:
    """Write three epochs of a data set to a file."""
    with file.open("w") as lines:
        for epoch in range(3):
            if hasattr(rows, "set_epoch"):
                rows.set_epoch(epoch)
            lines.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.mark.limit(240)
@pytest.mark.parametrize(
    ("make", "flow"),
    [
        ("WithImages", {"ranks": 2}),
        pytest.param(
            "hugging_face",
            {"encoder_ranks": 2, "backbone_ranks": 1, "mode": "frozen"},
            marks=pytest.mark.deep,
        ),
        pytest.param("Rows", {"encoder_ranks": 1, "backbone_ranks": 2}, marks=pytest.mark.deep),
        pytest.param("hugging_face", {"ranks": 2}, marks=pytest.mark.deep),
    ],
)
def test_a_killed_run_on_a_stream_ends_as_one_on_a_file(
    make: str, flow: dict[str, Any], tmp_path: Path, data: Path, source: ModuleType
) -> None:
    def tree(name: str, samples: dict[str, Any]) -> dict[str, Any]:
        return run_tree(
            tmp_path / name,
            data,
            data={"path": None, "image_root": str(data), "shuffle": False, **samples},
            train={"steps": STEPS, "global_batch": BATCH},
            flow=flow,
            checkpoint={"every": 3},
        )

    on_disk = "Rows" if make == "WithImages" else make
    write_epochs(tmp_path / "epochs.jsonl", getattr(source, on_disk)())
    trained(tree("file", {"path": str(tmp_path / "epochs.jsonl")}))
    stream = tree("stream", {"dataset": f"{source.__name__}:{make}"})
    tmp_path.joinpath("held").touch()
    killed = Run(stream)
    killed.wait_for_steps(5)
    killed.kill_all()
    tmp_path.joinpath("held").unlink()
    spooled = json.loads(tmp_path.joinpath("stream/stream/state.json").read_text())["records"]
    assert 5 * BATCH <= spooled <= HELD_AT
    if on_disk == "Rows":
        shard = tmp_path / "shards" / "0.jsonl"
        whole = shard.read_text()
        first, *others = whole.splitlines(keepends=True)
        shard.write_text("".join([first, first, *others]))
        assert "is another record than before this run was resumed" in failure(stream, resume=True)
        shard.write_text(whole)
    trained(stream, resume=True)
    for file in ("metrics.jsonl", "plan.log", "final/model.safetensors"):
        on_file, on_stream = ((tmp_path / run / file).read_bytes() for run in ("file", "stream"))
        assert on_file == on_stream, file
    # Exactly what the run needs was read.
    state = json.loads(tmp_path.joinpath("stream/stream/state.json").read_text())
    assert state["records"] == STEPS * BATCH
    # In events, the reader of the stream is another one than the reader of samples.
    planning = read_run(tmp_path / "stream")[0].records
    assert {*planning["index"][planning["track"] == TRACKS.index("workers")].tolist()} == {0, 1}
