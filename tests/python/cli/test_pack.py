"""`flowtrain pack` on a file of lengths and on presets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowtrain.cli.main import main
from flowtrain_core.packing import POLICIES


def write_trace(path: Path) -> Path:
    lines = [json.dumps({"tokens": 100 + 37 * i % 900, "visual_tokens": 64}) for i in range(96)]
    path.write_text("\n".join([*lines, "5000", ""]))
    return path


def test_all_policies_are_compared_the_best_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write_trace(tmp_path / "lengths.jsonl")
    command = ["pack", str(trace), "--ranks", "4", "--cap", "2000"]
    assert main([*command, "--microbatches", "8", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["policy"] for row in rows} == set(POLICIES)
    (ours,) = (row for row in rows if row["policy"] == "flowtrain-best")
    assert ours["lost"] <= rows[0]["lost"] + 1e-3
    assert [row["lost"] for row in rows] == sorted(row["lost"] for row in rows)
    assert main([*command, "--step", "32", "--policy", "arrival,flowtrain-best"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("lengths: 3 steps of 32 samples on 4 ranks x 3 microbatches")
    assert lines[0].endswith("1 samples above it left out")
    assert [line.split()[0] for line in lines[1:]] == ["policy", "flowtrain-best", "arrival"]


def test_a_preset_stands_in_for_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", "tiles", "--ranks", "8", "--cap", "8192", "--policy", "in-order"]) == 0
    assert "in-order" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "lengths.jsonl:2: not JSON"),
        ('"long"', "lengths.jsonl:2: tokens='long' must be a whole number"),
        ('{"tokens": -4}', "lengths.jsonl:2: tokens=-4"),
        ('{"tokens": 4, "cost": NaN}', "lengths.jsonl:2: cost=nan must be a number"),
        ('{"tokens": 4, "cost": 7.0}', "sample 1 has no cost, and others do"),
    ],
)
def test_a_bad_line_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    trace = tmp_path / "lengths.jsonl"
    trace.write_text(f"100\n{line}\n")
    assert main(["pack", str(trace), "--ranks", "2", "--cap", "1000"]) == 2
    assert message in capsys.readouterr().err


def test_a_picture_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "packed.png"
    assert main(["pack", "video", "--ranks", "8", "--cap", "26000", "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
