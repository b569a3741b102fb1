"""`flowtrain trace` and `report` of real runs, and of events that are written by hand."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy
import pytest
from forked_ranks import forked_ranks, trained
from report_pages import Page
from support import run_tree

from flowtrain.cli.main import main
from flowtrain.config import RunConfig, from_dict
from flowtrain.events import Attempt, EventFile, EventLog, path_of
from flowtrain.schedule import KINDS, Action
from flowtrain.train.launch.host import RunHost
from flowtrain.train.launch.run import train
from flowtrain_core import inspect

Entry = dict[str, Any]
ACTIONS = "actions"


@dataclass
class Timeline:
    """A written timeline; times are in ns."""

    entries: list[Entry]
    tracks: dict[tuple[str, str], list[Entry]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        names: dict[Any, str] = {}
        for entry in self.entries:
            for key in {"ts", "dur"} & entry.keys():
                entry[key] = round(entry[key] * 1000)
            place = entry["pid"], entry.get("tid")
            if entry["name"] in ("process_name", "thread_name"):
                names[place] = entry["args"]["name"]
            elif entry["ph"] == "X":
                self.tracks[names[place[0], None], names[place]].append(entry)
        self.labels = {pid: name for (pid, tid), name in names.items() if tid is None}
        self.names = names

    @staticmethod
    def read(path: Path) -> Timeline:
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return Timeline(json.loads(text)["traceEvents"])

    @cached_property
    def actions(self) -> list[tuple[str, Entry]]:
        """What the ranks did, without their runs."""
        return [
            (label, each)
            for (label, track), slices in self.tracks.items()
            for each in slices
            if track == ACTIONS and each["name"] != "run"
        ]

    def flows(self) -> Iterator[tuple[Entry, Entry]]:
        """Start and end of each arrow of a record."""
        ends = {each["id"]: each for each in self.entries if each["ph"] == "f"}
        for each in self.entries:
            if each["ph"] == "s" and each["name"] == "record":
                yield each, ends.pop(each["id"])

    def counters(self) -> dict[tuple[str, str], list[int]]:
        found = defaultdict(list)
        last: dict[tuple[str, str], int] = {}
        for each in self.entries:
            if each["ph"] == "C":
                key = self.labels[each["pid"]], each["name"]
                assert each["ts"] >= last.get(key, 0)
                last[key] = each["ts"]
                found[key].append(each["args"]["bytes"])
        return found


def end(each: Entry) -> int:
    return int(each["ts"] + each["dur"])


def traced(*arguments: object, out: Path) -> Timeline:
    assert main(["trace", *map(str, arguments), "--out", str(out)]) == 0
    return Timeline.read(out)


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """A run in two starts, with records both ways, evaluations and a profile."""
    folder = tmp_path_factory.mktemp("trace") / "bounded"
    for steps in (4, 6):
        tree = run_tree(
            folder,
            data,
            train={"steps": steps},
            optim={"schedule_steps": 6},
            flow={"encoder_ranks": 1, "backbone_ranks": 2, "mode": "bounded", "staleness": 1},
            eval={"path": str(data / "heldout.jsonl"), "every": 2},
            track={"profile_start": 5, "profile_steps": 1},
            debug={"delay_ms": 10.0},
        )
        trained(tree, resume=steps > 4)
    return folder


@pytest.fixture(scope="module")
def colocated(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    """A run in which ranks encode images for each other."""
    folder = tmp_path_factory.mktemp("trace") / "colocated"
    small = {"steps": 4, "global_batch": 3, "microbatch_tokens": 70}
    trained(run_tree(folder, data, train=small, flow={"ranks": 2}))
    return folder


@pytest.mark.parametrize("name", ["bounded", "colocated"])
def test_a_timeline_is_sound(name: str, bounded: Path, colocated: Path, tmp_path: Path) -> None:
    found = traced(bounded if name == "bounded" else colocated, out=tmp_path / "t.json.gz")
    labels = ["backbone.0", "backbone.1", "encoder.0"] if name == "bounded" else None
    assert list(found.labels.values()) == labels or ["colocated.0", "colocated.1"]
    for slices in found.tracks.values():
        # As Perfetto reads a track: what encloses others comes first, and nothing else overlaps.
        enclosing: list[Entry] = []
        for each in slices:
            assert each["ts"] >= (enclosing[-1]["ts"] if enclosing else 0)
            while enclosing and end(enclosing[-1]) <= each["ts"]:
                enclosing.pop()
            assert not enclosing or end(each) <= end(enclosing[-1]), (enclosing[-1], each)
            enclosing.append(each)
    puts, gets = (
        {
            (each["args"]["attempt"], each["args"]["step"], each["args"]["index"], to): each
            for label, each in found.actions
            for to in [(each["args"].get("module") == "encoder") == (kind == "put ")]
            if each["name"].startswith(kind)
        }
        for kind in ("put ", "get ")
    )
    flows = list(found.flows())
    assert puts.keys() == gets.keys()
    assert len(flows) == len(gets) > 10
    starts = {(each["pid"], each["ts"]): key for key, each in puts.items()}
    for start, finish in flows:
        assert start["ts"] < finish["ts"]
        get = gets[starts[start["pid"], start["ts"]]]
        assert finish["pid"] == get["pid"]
        assert get["ts"] <= finish["ts"] < end(get)
        assert finish["bp"] == "e"
    counters = found.counters()
    crossed = sum(
        put["args"]["bytes"] for key, put in puts.items() if put["pid"] != gets[key]["pid"]
    )
    for direction in ("records in the pool", "records to read"):
        series = [sizes for (_, name), sizes in counters.items() if name == direction]
        assert all(min(sizes) >= 0 == sizes[-1] for sizes in series)
        rises = sum(
            max(b - a, 0) for sizes in series for a, b in zip([0, *sizes], sizes, strict=False)
        )
        # A record that a rank has waited for may be read before its sender is done.
        assert rises <= crossed
        assert rises or name == "colocated"
    for label in found.labels.values():
        peaks, shared = (counters[label, f"memory: {kind}"] for kind in ("resident", "shared"))
        ended = sum(each["name"] == "forget" for own, each in found.actions if own == label)
        # Of each step, and not of the batches of evaluations.
        assert len(peaks) == len(shared) == (6 if name == "bounded" else 4) <= ended
        assert max(peaks) > max(shared) > min(shared) >= 0
    to_itself = sum(put["args"]["bytes"] for put in puts.values()) - crossed
    assert crossed > 0
    assert (to_itself > 0) == (name == "colocated")


def waits_for_slabs(run: Path, data: Path) -> tuple[int, int]:
    """Run; return how long its encoder rank waited for slabs, by the pool and by the timeline."""
    tree = run_tree(
        run,
        data,
        train={"steps": 5},
        # Ranks that come and go claim an item only once they have room for it.
        flow={"mode": "frozen", "elastic": False},
        pool={"scale": 1.0},
        debug={"delay_ms": 100.0},
    )
    measured = 0

    def ranks(config: RunConfig, host: RunHost, *, resume: bool) -> None:
        nonlocal measured
        forked_ranks(config, host, resume=resume)
        lanes = inspect(host.job.pool)["lanes"]
        measured = sum(lane["alloc_wait"]["sum_ns"] for lane in lanes)

    train(from_dict(tree), run_ranks=ranks)
    found = traced(run, out=run / "t.json")
    waits = [
        each["dur"] for each in found.tracks["encoder.0", "waits"] if each["args"]["wait"] == "slab"
    ]
    return measured, sum(waits)


def test_waits_for_slabs_are_those_that_the_pool_has_measured(tmp_path: Path, data: Path) -> None:
    # On a busy machine a rank may be put off the processor between the clocks of the two.
    runs = [tmp_path / f"run-{number}" for number in range(3)]
    assert any(
        measured > 2e8 and waited == pytest.approx(measured, rel=0.02)
        for measured, waited in (waits_for_slabs(run, data) for run in runs)
    )


def test_steps_are_cut_out(bounded: Path, tmp_path: Path) -> None:
    whole = traced(bounded, out=tmp_path / "whole.json")
    cut = traced(bounded, "--steps", "2:3", out=tmp_path / "cut.json")

    def of_step(found: Timeline) -> list[tuple[str, str, int]]:
        return sorted(
            (label, each["name"], each["dur"])
            for label, each in found.actions
            if each["args"]["step"] == 2 and each["name"] != "plan"
        )

    assert of_step(cut) == of_step(whole)
    own = [each for _, each in cut.actions if each["args"]["step"] == 2 and each["name"] != "plan"]
    first, last = min(each["ts"] for each in own), max(map(end, own))
    slices = [each for slices in cut.tracks.values() for each in slices]
    assert all(each["ts"] <= last and end(each) >= first for each in slices)
    # The encoder has begun the next step, and the time before and after is not shown.
    assert {each["args"]["step"] for _, each in cut.actions} >= {1, 2, 3}
    assert not {each["args"]["step"] for _, each in cut.actions} & {4, 5}
    assert all(min(sizes) >= 0 for sizes in cut.counters().values())


def test_a_profile_lies_over_the_actions(bounded: Path, tmp_path: Path) -> None:
    found = traced(bounded, "--steps", "5:6", out=tmp_path / "t.json")
    for label in ("backbone.0", "backbone.1", "encoder.0"):
        actions = found.tracks[label, ACTIONS]
        profiled = [
            each
            for (own, track), slices in found.tracks.items()
            for each in slices
            if own == label and track.startswith("profiler: ") and each["name"] in KINDS
        ]
        kinds = {"encoder_backward"} if label == "encoder.0" else {"forward", "backward"}
        assert {each["name"] for each in profiled} >= kinds
        for each in profiled:
            enclosing = [
                action
                for action in actions
                if action["ts"] - 10**6 <= each["ts"] and end(each) <= end(action) + 10**6
                if action["name"].split()[0] == each["name"]
            ]
            assert enclosing, each


def test_two_runs_begin_together(bounded: Path, colocated: Path, tmp_path: Path) -> None:
    found = traced(bounded, colocated, "--steps", "1:2", out=tmp_path / "t.json")
    assert set(found.labels.values()) == {
        *(f"bounded {label}" for label in ("backbone.0", "backbone.1", "encoder.0")),
        *(f"colocated colocated.{rank}" for rank in range(2)),
    }
    begun: dict[str, int] = {}
    for label, each in found.actions:
        if each["args"]["step"] == 1 and not each["name"].startswith("plan"):
            run = label.split()[0]
            begun[run] = min(each["ts"], begun.get(run, each["ts"]))
    assert begun["bounded"] == begun["colocated"]
    pids = [pid for pid, _ in found.names]
    assert len(set(found.names)) == len(found.names)
    assert min(pids) > 0


def test_a_report_has_the_figures_of_the_summary(
    bounded: Path, colocated: Path, tmp_path: Path
) -> None:
    pages = {}
    for run in (bounded, colocated):
        assert main(["report", str(run), "--out", str(tmp_path / "page.html")]) == 0
        page = pages[run] = Page.read(tmp_path / "page.html")
        summary = json.loads(run.joinpath("summary.json").read_text())
        spent: dict[str, float] = defaultdict(float)
        for row in page.figures["Where the time went"]:
            spent[row["rank"]] += row["seconds"]
        seconds = summary["activity_seconds"]
        assert spent == pytest.approx({k: sum(v.values()) for k, v in seconds.items()}, abs=0.01)
        ratios = "pad_ratio_before", "pad_ratio_after"
        before, after = (f"{summary[name]:.1%}" for name in ratios)
        assert any(f"Padding {before} in arrival order, {after} packed" in f for f in page.findings)
        assert any(f"{summary['tokens_per_s']:,.0f} tokens/s" in said for said in page.findings)
        # A rank does one thing at a time, and the timeline has all of the time.
        slices = page.figures["Timeline"]
        assert {row["rank"] for row in slices} == set(seconds)
        assert all(0 <= row["start"] <= row["end"] for row in slices)
        waits = page.figures["Waits between ranks"]
        assert all(0 <= row["share"] <= 1 for row in waits)
        assert max(row["share"] for row in waits) > 0
    assert {row["what"] for row in pages[bounded].figures["Loss"]} == {"training", "held-out"}
    # The run was started twice, and its logs go on.
    text = pages[bounded].text
    starts = re.findall(r"<td>3</td><td>(\d+ to \d+)</td><td>complete</td></tr>", text)
    assert starts == ["0 to 3", "4 to 5"]
    assert len(pages[colocated].figures["Loss"]) == 4


def write_events(run: Path, label: str, attempt: int, steps: range, *, keep: int = 10) -> None:
    """Steps of a rank that receives no record."""
    log = EventLog()
    clock = Attempt(number=attempt, pid=1, clock_offset_ns=10**18)
    log.attach(EventFile(path_of(run, label), label, clock, keep_steps=keep))
    with log.span("run"):
        for step in steps:
            for action in (
                Action(step, "load", "encoder"),
                Action(step, "put", "encoder", 0, 0),
                Action(step, "forget"),
            ):
                log.begin_action(action)
                log.count(8 * (action.kind == "put"))
                if action.kind == "forget":
                    log.step_ended()
                log.end()
    log.close()


def test_the_records_of_a_killed_attempt_are_gone_in_the_next(tmp_path: Path) -> None:
    runs = [tmp_path / name / "run" for name in "ab"]
    for run in runs:
        run.mkdir(parents=True)
        run.joinpath("config.yaml").touch()
        for attempt in range(2):
            write_events(run, "encoder.0", attempt, range(3))
    found = traced(*runs, out=tmp_path / "t.json")
    assert [*found.labels.values()] == [f"{run} encoder.0" for run in runs]
    found = traced(runs[0], out=tmp_path / "t.json")
    assert found.counters()["encoder.0", "records in the pool"] == [8, 16, 24, 0, 8, 16, 24]
    assert not list(found.flows())


def test_what_cannot_be_shown_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"

    def error(*arguments: object) -> str:
        assert main(["trace", *map(str, arguments)]) == 2
        return capsys.readouterr().err

    assert f"{run}: no run has started there; give the folder of a run" in error(run)
    run.mkdir()
    run.joinpath("config.yaml").touch()
    assert f"{run}: no events; its ranks have not begun to train, or an older" in error(run)
    # Of 8 steps, those from the fifth on are kept, and the end of the fourth.
    write_events(run, "encoder.0", 0, range(8), keep=2)
    kept = "kept are those of steps 5 to 7 (track.event_steps in"
    assert f"no events of steps 2 to 4 and 8; {kept}" in error(run, "--steps", "2:9")
    assert f"no events of step 8; {kept}" in error(run, "--steps", "8:9")
    assert "argument --steps: 3: write FIRST:END, such as 0:2" in error(run, "--steps", "3")
    out = tmp_path / "nowhere" / "t.json.gz"
    told = f"--out {out}: it cannot be written (No such file or directory); name another file"
    assert told in error(run, "--out", out)
    assert main(["trace", str(run), "--steps", "5:8"]) == 0
    found = Timeline.read(run / "trace.json.gz")
    assert {each["args"]["step"] for _, each in found.actions} == {5, 6, 7}
    profile = run / "profile" / "encoder.0.json"
    profile.parent.mkdir()
    profile.write_text('{"traceEvents": [')
    assert f"{profile}: not a whole profile of torch" in error(run)
    records = numpy.asarray([], "u1")
    path_of(run, "encoder.0").write_bytes(records.tobytes())
    assert "not a file of events" in error(run)
