"""`flowtrain pack` on a file of lengths and on presets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from report_pages import Page

from flowtrain.cli.main import main
from flowtrain_core.packing import POLICIES


def write_trace(path: Path) -> Path:
    lines = [json.dumps({"tokens": 100 + 37 * i % 900, "visual_tokens": 64}) for i in range(96)]
    path.write_text("\n".join([*lines, "5000", ""]))
    return path


def test_all_policies_are_compared_best_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write_trace(tmp_path / "lengths.jsonl")
    command = ["pack", str(trace), "--ranks", "4", "--max-tokens", "2000"]
    assert main([*command, "--microbatches", "8", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["policy"] for row in rows} == set(POLICIES)
    (ours,) = (row for row in rows if row["policy"] == "flowtrain-best")
    assert ours["waiting"] <= rows[0]["waiting"] + 1e-3
    assert [row["waiting"] for row in rows] == sorted(row["waiting"] for row in rows)
    assert main([*command, "--step", "32", "--policy", "arrival,flowtrain-best"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("lengths: 3 x 32 samples on 4 ranks x 3 microbatches")
    assert lines[0].endswith("dropped samples: 1 above --max-tokens, up to 5000 tokens")
    assert [line.split()[0] for line in lines[1:]] == ["policy", "flowtrain-best", "arrival"]


def test_a_preset_replaces_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["pack", "tiles", "--ranks", "8", "--max-tokens", "8192", "--policy", "in-order"]) == 0
    )
    assert "in-order" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "lengths.jsonl:3: not JSON"),
        ('"long"', "lengths.jsonl:3: tokens='long' must be a whole number from 0"),
        ("7.5", "lengths.jsonl:3: tokens=7.5 must be a whole number"),
        ('{"tokens": -4}', "lengths.jsonl:3: tokens=-4"),
        ("1" + "0" * 30, "lengths.jsonl:3: tokens=1000"),
        ('{"length": 4}', "lengths.jsonl:3: no 'tokens' among its fields ('length')"),
        ('{"tokens": 4, "visual_tokens": 5}', "lengths.jsonl:3: visual_tokens=5 exceed tokens=4"),
        (
            '{"tokens": 9, "visual_tokens": 5, "images": 0}',
            "lengths.jsonl:3: visual_tokens=5 with images=0; give at least one image",
        ),
        ('{"tokens": 4, "cost": NaN}', "lengths.jsonl:3: cost=nan must be a number"),
        ('{"tokens": 4, "cost": 7.0}', "lengths.jsonl:1: no cost, but line 3 has one"),
        ("\udcff", "lengths.jsonl: byte 5 is not UTF-8"),
    ],
)
def test_a_bad_line_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    trace = tmp_path / "lengths.jsonl"
    trace.write_text(f"100\n\n{line}\n", errors="surrogateescape")
    assert main(["pack", str(trace), "--ranks", "2", "--max-tokens", "1000"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("lengths.jsonl --ranks 0", "ranks=0: must be from 1 to"),
        ("lengths.jsonl --ranks 99999999999", "ranks=99999999999: must be from 1 to"),
        ("lengths.jsonl --microbatches 0", "microbatches=0: must be from 1 to"),
        ("lengths.jsonl --step -1", "step_samples=-1: must be from 1 to"),
        (
            "lengths.jsonl --step 97",
            "96 samples within max_tokens=2000 are fewer than a step of 97",
        ),
        (
            "lengths.jsonl --max-tokens 99",
            "shortest of 97 samples has 100 tokens, which exceeds max_t",
        ),
        ("empty.jsonl", "empty: no samples"),
        ("vidoe", "vidoe: neither a file nor a preset; presets are tiles, native, video"),
        ("tiles --samples -1", "--samples=-1: it must be 1 or more"),
        ("tiles --samples 0", "--samples=0: it must be 1 or more"),
        ("lengths.jsonl --seed 5", "--samples and --seed draw a preset, and it is none"),
    ],
)
def test_impossible_packings_are_errors(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_trace(Path("lengths.jsonl"))
    Path("empty.jsonl").write_text("\n")
    assert main(["pack", "--ranks", "4", "--max-tokens", "2000", *words.split()]) == 2
    assert message in capsys.readouterr().err


def test_enough_slots_are_used_if_no_two_samples_share_a_microbatch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "lengths.jsonl"
    trace.write_text("600\n" * 8)
    command = ["pack", str(trace), "--ranks", "2", "--max-tokens", "1000", "--json"]
    assert main([*command, "--policy", "flowtrain-best"]) == 0
    assert json.loads(capsys.readouterr().out)["microbatches"] == 4


def test_a_page_shows_the_waits_that_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, out = write_trace(tmp_path / "lengths.jsonl"), tmp_path / "page.html"
    command = ["pack", str(trace), "--ranks", "4", "--max-tokens", "2000", "--json", "--plot"]
    policies = ["--policy", "arrival,longest-first"]
    assert main([*command, str(out), *policies]) == 0
    rows = {row["policy"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    page = Page.read(out)
    assert all(link.startswith("#") for link in page.fetched)
    for policy, name in (("arrival", "arrival order"), ("longest-first", "longest-first")):
        spans = page.figures[f"The first step in time: {name}"]
        lengths = {"computing": 0.0, "waiting for the slowest rank": 0.0}
        for rank in range(4):
            own = [span for span in spans if span["rank"] == f"rank {rank}"]
            own.sort(key=lambda span: span["from"])
            ends = [0.0, *(span["to"] for span in own)]
            assert [span["from"] for span in own] == ends[:-1]
            for span in own:
                lengths[span["part"]] += span["to"] - span["from"]
        computing, waiting = lengths.values()
        assert computing / 4 == pytest.approx(1, abs=1e-3)
        assert waiting / (computing + waiting) == pytest.approx(rows[policy]["waiting"], abs=1e-3)
    (bar,) = (
        row["length"]
        for row in page.figures["Time of a step"]
        if (row["bar"], row["part"]) == ("arrival", "waiting")
    )
    assert bar == pytest.approx(rows["arrival"]["waiting"] / (1 - rows["arrival"]["waiting"]))
    assert main([*command, str(tmp_path / "nowhere" / "page.html")]) == 2
    assert "--plot" in capsys.readouterr().err
