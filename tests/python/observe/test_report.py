"""`flowtrain report` on folders that are written by hand; real runs are in multiproc."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from pathlib import Path

import pytest
from plans import decoupled, plan_file
from report_pages import Page
from support import run_tree

from flowtrain.cli.main import main
from flowtrain.config import dump, from_dict
from flowtrain.config.layout import RankLayout
from flowtrain.events import KINDS, MODULES, TRACKS, WAITS, Attempt, EventFile, path_of
from flowtrain.observe.report.read import read_reported
from flowtrain.observe.report.totals import mfu_of, module_totals
from flowtrain.observe.report.waits import waits_between
from flowtrain.observe.trace.run import read_traced
from flowtrain.plan.host import Choice
from flowtrain.plan.plan_file import PlannedRun, dump_plan
from flowtrain.plan.run_layout import RunLayout
from flowtrain.steps import CorrectionEvent, Document, StepPlan
from flowtrain.train.state.choice import write_choice
from flowtrain.train.state.run_folder import HEADER, lock_run
from flowtrain.train.state.strips import ReadStrip, write_strips

SECTIONS = ["Loss and evaluation", "Speed", "Time of the ranks", "Waits", "Some steps in detail"]
SECTIONS += ["Layout", "Packing", "Pool and memory", "Course"]
MS = 10**6
RATIOS = {"dist_ratio": 0.0, "encoder_dist_ratio": 0.0, "pad_ratio": 0.125}


def started(run: Path) -> Path:
    """The folder of a run that has begun, and whose launcher no longer runs."""
    run.mkdir(parents=True)
    config = from_dict(run_tree(run, run.parent, flow={"encoder_ranks": 1, "backbone_ranks": 2}))
    run.joinpath("config.yaml").write_text(HEADER + dump(config))
    run.joinpath("lock").touch()
    return run


def write_logs(run: Path, losses: list[float | None]) -> None:
    metrics, timing, plans = [], [], []
    left_out = dict.fromkeys(("skipped_samples", "dropped_samples", "truncated_samples"), 1)
    for step, loss in enumerate(losses):
        arrival = {**RATIOS, "pad_ratio": 0.5, "dist_ratio": 0.25}
        metrics.append(
            {
                "step": step,
                "loss": loss,
                "target_tokens": 3,
                "samples": [0],
                "lr": 0.1,
                "grad_norm": 1.5,
                "weight_ages": [0],
                **left_out,
                "action": "apply",
                "packing": {"gap": 0.01, "packed": RATIOS, "arrival": arrival},
            }
        )
        timing.append(
            {
                "step": step,
                "seconds": 0.5,
                "tokens": 100,
                "tokens_per_s": 200.0,
                "mfu": 0.4,
                "modules": {
                    # 1 of 5 FLOPs, on 1 of 2 TFLOP/s; half of the time is in passes.
                    "encoder": {"flops": 1e11, "peak_flops": 1e12, "mfu": 0.2, "pass_mfu": 0.4},
                    "backbone": {
                        "flops": 4e11,
                        "peak_flops": 1e12,
                        "mfu": 0.8,
                        "pass_mfu": None,
                    },
                },
                "memory_bytes": {"backbone.0": 500 + step, "encoder.0": None},
                "activity_s": {"backbone": {"backbone": 0.3, "wait_receive": 0.1}},
                "pool_in_use_bytes": 8,
                "pool_bytes": 64,
                "bytes_through_pool": 32,
                "peak_flops": 2e12,
            }
        )
        documents = tuple(
            Document(sample=n, num_tokens=20 + n, num_targets=1, image_tokens=n, grids=())
            for n in range(4)
        )
        row = ((documents[:3],), (documents[3:],))
        plans.append(StepPlan(step=step, kind="train", slots=1, documents=row).to_json())
    correction = CorrectionEvent(step=1, state="on", factors={2: 1.5}).to_json()
    for name, lines in (("metrics", metrics), ("timing", timing)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        run.joinpath(f"{name}.jsonl").write_text(text)
    run.joinpath("plan.log").write_text("\n".join([correction, *plans]) + "\n")
    run.joinpath("eval.jsonl").write_text('{"step":1,"loss":2.25}\n')


def write_events(run: Path) -> None:
    """One step of three ranks, of 100 ms; what each waited for is in `WAITED`."""
    spans = {
        "encoder.0": [
            *(("load", "encoder", "", -1, 0, 4), ("load", "encoder", "store", -1, 1, 4)),
            ("get", "encoder", "record", 1, 50, 57),
            # A rank that comes and goes has no item while it waits for a slab.
            *(("put", "", "", -1, 60, 70), ("put", "", "slab", -1, 61, 70)),
            ("exchange", "", "", -1, 90, 100),
        ],
        "backbone.0": [
            ("load", "backbone", "", -1, 0, 1),
            ("get", "backbone", "record", 0, 10, 40),
            ("sums", "", "ranks", -1, 60, 80),
            *(("exchange", "", "", -1, 85, 100), ("exchange", "", "store", -1, 90, 95)),
        ],
        "backbone.1": [
            ("load", "backbone", "", -1, 0, 1),
            ("sums", "", "ranks", -1, 78, 80),
            *(("exchange", "", "", -1, 85, 100), ("exchange", "", "store", -1, 90, 94)),
        ],
    }
    for label, own in spans.items():
        attempt = Attempt(number=0, pid=1, clock_offset_ns=10**18)
        file = EventFile(path_of(run, label), label, attempt, keep_steps=9)
        for kind, module, wait, peer, start, end in own:
            track = TRACKS.index("waits" if wait else "actions")
            codes = KINDS.index(kind), MODULES.index(module), WAITS.index(wait)
            span = (start * MS, end * MS, (end - start) * MS)
            file.append(*span, 0, 0, 0, -1, peer, 0, track, *codes, 0)
        for kind, size in (("resident", RESIDENT[label]), ("shared", 30)):
            codes = TRACKS.index("memory"), KINDS.index(kind)
            file.append(100 * MS, 100 * MS, 0, 0, size, 0, -1, -1, 0, *codes, 0, 0, 0)
        file.close()


RESIDENT = {"encoder.0": 400, "backbone.0": 520, "backbone.1": 700}
# In sums of gradients backbone.1 came last, and to the reports encoder.0.
WAITED = {
    ("encoder.0", "planner"): 0.003,
    ("encoder.0", "backbone.1"): 0.007,
    ("encoder.0", "others"): 0.009,
    ("backbone.0", "encoder.0"): 0.035,
    ("backbone.0", "backbone.1"): 0.020,
    ("backbone.1", "others"): 0.002,
    ("backbone.1", "encoder.0"): 0.004,
}


def reported(*arguments: object, out: Path) -> Page:
    assert main(["report", *map(str, arguments), "--out", str(out)]) == 0
    return Page.read(out)


def test_waits_count_for_the_rank_that_causes_them(tmp_path: Path) -> None:
    write_events(started(tmp_path / "run"))
    waits = waits_between(read_traced(tmp_path / "run", None))
    assert waits.seconds == pytest.approx(0.1)
    assert waits.waited == pytest.approx(WAITED)


def test_a_page_says_what_the_files_of_a_run_say(tmp_path: Path) -> None:
    run = started(tmp_path / "run")
    write_logs(run, [4.0, None, 2.0])
    write_events(run)
    page = reported(run, out=tmp_path / "page.html")
    assert page.titles == SECTIONS
    assert [(row["what"], row["step"], row["mean"]) for row in page.figures["Loss"]] == [
        ("training", 0, 4.0),
        ("training", 2, 2.0),
        ("held-out", 1, 2.25),
    ]
    for said in (
        "200 tokens/s over 3 steps, and an MFU of 40.0% of a peak of 2 TFLOP/s",
        "backbone.0 waited for encoder.0 35.0% of its time",
        "Padding 50.0% in arrival order, 12.5% packed: in arrival order the rows would be 1.75",
        "96 B crossed the pool, which had at most 64 B",
        "backbone.1 used the most memory: 700 B resident",
    ):
        assert any(said in finding for finding in page.findings), said
    rows = page.figures["Memory of the ranks"]
    assert {row["rank"]: row["bytes"] for row in rows if "peak" in row["kind"]} == RESIDENT
    assert [row["mean"] for row in page.figures["Peak memory over the steps"]] == [500, 501, 502]
    assert {row["what"] for row in page.figures["MFU"]} == {"all ranks", "encoder", "backbone"}
    assert {row["what"] for row in page.figures["MFU in passes"]} == {"encoder"}
    for title, encoder, backbone in (
        ("Share of the model FLOPs", "20.0%", "80.0%"),
        ("Share of time in its passes", "50.0%", "-"),
    ):
        cells = f"<td>{encoder}</td><td>{backbone}</td>"
        assert f'<th scope="row">{title}</th>{cells}' in page.text
    rows = page.figures["Packed rows"]
    assert [(row["from"], row["count"]) for row in rows] == [(20, 3), (60, 3)]
    assert "<td>65 to 128: 1.50</td>" in page.text
    assert '<th scope="row">Skipped samples</th><td>3</td>' in page.text
    assert {row["what"] for row in page.figures["Left out"]} == {
        *("skipped samples", "dropped samples", "truncated samples"),
    }
    # All that a page links to is within it.
    assert page.fetched
    assert all(link.startswith("#") for link in page.fetched)
    assert "default-src 'none'" in page.text
    assert len(page.text.encode()) < 5e6


def test_held_out_strips_are_in_the_page(tmp_path: Path) -> None:
    run = started(tmp_path / "run")
    write_strips(run, [ReadStrip(b"one", "40", "40"), ReadStrip(b"two", "17", "<b>")])
    page = reported(run, out=tmp_path / "page.html")
    assert page.titles == [SECTIONS[0], "Answers", *SECTIONS[1:]]
    assert "1 of the 2 held-out strips below were read without an error." in page.findings[0]
    pictures = [f"data:image/png;base64,{b64encode(png).decode()}" for png in (b"one", b"two")]
    assert [link for link in page.fetched if not link.startswith("#")] == pictures
    assert "<span>expected 17, read &lt;b&gt;</span>" in page.text


def test_hits_of_a_cache_are_counted_over_all_images(tmp_path: Path) -> None:
    run = started(tmp_path / "run")
    write_logs(run, [2.0, 1.5, 1.25])
    timing = [json.loads(line) for line in (run / "timing.jsonl").read_text().splitlines()]
    for line, (hits, misses) in zip(timing, [(0, 6), (0, 0), (3, 1)], strict=True):
        line |= {"cache_hits": hits, "cache_misses": misses}
    (run / "timing.jsonl").write_text("".join(json.dumps(line) + "\n" for line in timing))
    page = reported(run, out=tmp_path / "page.html")
    assert "Features of 3 of 10 images (30.0%) were in the cache." in page.findings
    rows = page.figures["Hits of the cache"]
    assert [row["mean"] for row in rows] == [0.0, 0.75]


def test_a_long_run_is_binned_and_keeps_its_extremes(tmp_path: Path) -> None:
    losses: list[float | None] = [2.0 + step % 7 / 8 for step in range(5000)]
    losses[3210], losses[77] = 100.0, 0.5
    write_logs(started(tmp_path / "run"), losses)
    rows = reported(tmp_path / "run", out=tmp_path / "page.html").figures["Loss"]
    rows = [row for row in rows if row["what"] == "training"]
    assert 200 <= len(rows) <= 250
    assert min(row["low"] for row in rows) == 0.5
    (peak,) = (row for row in rows if row["high"] == 100.0)
    assert peak["steps"] == "3200 to 3219"


def test_the_layout_is_explained_as_long_as_it_is_that_of_the_run(tmp_path: Path) -> None:
    run, plan = started(tmp_path / "run"), tmp_path / "plan.json"
    write_logs(run, [4.0, 3.0])
    write_events(run)
    assumed = PlannedRun.of(from_dict(run_tree(run, run.parent)))
    plan.write_text(dump_plan(plan_file(decoupled(1, 2), "", assumed)))
    layouts = [RunLayout(ranks=RankLayout.decoupled(1, n)) for n in (2, 3)]
    choice = Choice(
        layout=layouts[0],
        step_s=0.25,
        where="2 cores",
        source="calibration",
        next_best=(layouts[1], 0.35),
    )
    write_choice(run, choice=choice, plan=plan)
    page = reported(run, out=tmp_path / "page.html")
    assert any(
        "Layout 1 + 2, flow.mode strict, encoder replicated, backbone replicated: chosen, with an "
        "estimate of 0.25 s a step on 2 cores, from calibration. The next best, 1 + 3, was "
        "estimated at 0.35 s: 40.0% slower. Measured: 0.5 s, the median." in said
        for said in page.findings
    )
    assert '<tr><th scope="row">Tokens/s</th><td>1,000,000</td><td>200</td></tr>' in page.text
    assert "<td>58 GB of 81.6 GB</td><td>700 B resident</td>" in page.text
    assert "The estimate is off by a factor of 2.0" in page.text
    # The run goes on in another layout.
    config = run_tree(run, run.parent, flow={"ranks": 2})
    run.joinpath("config.yaml").write_text(HEADER + dump(from_dict(config)))
    page = reported(run, out=tmp_path / "page.html")
    assert any(
        "Layout colocated 2" in said and "given by the run" in said for said in page.findings
    )
    assert "Its first steps had backbone ranks; the speed is of all steps." in page.findings
    assert "Plan and run" not in page.figures


def test_runs_are_compared(tmp_path: Path) -> None:
    # Names are data, also those that would end a script.
    runs = [tmp_path / name for name in ("a<", "b<")]
    runs = [run / "script>" for run in runs]
    for run, loss in zip(runs, (4.0, 3.0), strict=True):
        write_logs(started(run), [loss])
    page = reported(*runs, out=tmp_path / "page.html")
    assert {row["run"] for row in page.figures["Loss"]} == set(map(str, runs))
    assert "<td>4</td><td>3</td>" in page.text


def test_mfu_of_the_modules_adds_up_where_the_peak_has_changed(tmp_path: Path) -> None:
    run = started(tmp_path / "run")
    # Colocated: each module has the peak of all ranks, which a resume measures anew.
    lines = []
    for step, (seconds, peak, mfu) in enumerate([(1.0, 1e12, 0.2), (3.0, 4e12, 0.1)]):
        modules = {
            name: {"flops": own * seconds * peak, "peak_flops": peak, "mfu": own, "pass_mfu": 0.5}
            for name, own in (("encoder", mfu), ("backbone", 2 * mfu))
        }
        line = {"step": step, "seconds": seconds, "tokens": 1, "tokens_per_s": 1, "mfu": 3 * mfu}
        line |= {"peak_flops": peak, "modules": modules, "activity_s": {}}
        line |= {"pool_in_use_bytes": 0, "pool_bytes": 0, "bytes_through_pool": 0}
        lines.append(json.dumps(line) + "\n")
    run.joinpath("timing.jsonl").write_text("".join(lines))
    page = reported(run, out=tmp_path / "page.html")
    assert "MFU of 37.5% of a peak of 1 TFLOP/s to 4 TFLOP/s for all ranks" in page.text
    (found,) = read_reported([run])
    encoder, backbone = module_totals(found, "encoder"), module_totals(found, "backbone")
    assert encoder is not None and backbone is not None
    assert (encoder.mfu, encoder.in_passes) == pytest.approx((0.125, 0.25))
    assert (backbone.mfu, backbone.in_passes) == pytest.approx((0.25, 0.5))
    assert encoder.mfu + backbone.mfu == pytest.approx(mfu_of(found))


def test_a_run_shows_what_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = tmp_path / "run", tmp_path / "page.html"
    assert main(["report", str(run)]) == 2
    assert f"{run}: no run has started there; give the folder of a run" in capsys.readouterr().err
    started(run)
    nowhere = tmp_path / "nowhere" / "page.html"
    assert main(["report", str(run), "--out", str(nowhere)]) == 2
    told = f"--out {nowhere}: it cannot be written (No such file or directory); name another file"
    assert told in capsys.readouterr().err
    page = reported(run, out=out)
    assert page.titles == SECTIONS
    assert list(page.figures) == ["Course of the run"]
    assert len(page.missing) >= 6
    assert "no run was started in this folder" in page.text
    write_logs(run, [4.0, 3.0])
    for name in ("metrics.jsonl", "timing.jsonl", "eval.jsonl", "plan.log"):
        with run.joinpath(name).open("a") as log:
            log.write('{"step":9,"lo')
    with lock_run(run):
        page = reported(run, out=out)
    assert "the run goes on" in page.text
    assert [row["step"] for row in page.figures["Loss"]] == [0, 1, 1]
    assert main(["report", str(run), "--steps", "0:1"]) == 2
    assert f"{run / 'events'}: no events, and so no timeline" in capsys.readouterr().err


def test_memory_of_a_gpu_goes_before_that_of_the_process(tmp_path: Path) -> None:
    run = started(tmp_path / "run")
    attempt = Attempt(number=0, pid=1, clock_offset_ns=0)
    file = EventFile(path_of(run, "encoder.0"), "encoder.0", attempt, keep_steps=9)
    sizes = {"resident": 900, "shared": 30, "allocated": 500, "reserved": 600}
    for step in range(2):
        for kind, size in sizes.items():
            codes = TRACKS.index("memory"), KINDS.index(kind)
            file.append(MS, MS, 0, 0, size * (step + 1), step, -1, -1, 0, *codes, 0, 0, 0)
    file.close()
    page = reported(run, out=tmp_path / "page.html")
    assert "encoder.0 used the most memory: 1 kB allocated on its GPU." in page.findings
    for title, found in (
        ("Memory of the GPUs", [1200, 1000]),
        ("Memory of the ranks", [1800, 60]),
    ):
        assert [row["bytes"] for row in page.figures[title]] == found


def test_each_start_is_shown_with_its_end(tmp_path: Path) -> None:
    run = started(tmp_path / "run")
    write_events(run)  # In 2001-09-09 01:46:40.
    ends = ("stopped by a signal", "failed: encoder.0 has died", None, "complete")
    for minute, end in zip((45, 46, 47, 48), ends, strict=True):
        with run.joinpath("ended").open("a") as file:
            file.write(f"started 2001-09-09 01:{minute}:30 +0000\n" + (f"{end}\n" if end else ""))
    page = reported(run, out=tmp_path / "page.html")
    rows = re.findall(r'<th scope="row">(\d)</th>(.*?)</tr>', page.text)
    assert [re.findall("<td>(.*?)</td>", cells) for _, cells in rows] == [
        ["2001-09-09 01:45:30", "-", "-", "stopped by a signal"],
        ["2001-09-09 01:46:30", "3", "-", "failed: encoder.0 has died"],
        ["2001-09-09 01:47:30", "-", "-", "its launcher was killed"],
        ["2001-09-09 01:48:30", "-", "-", "complete"],
    ]


def test_a_build_without_the_library_of_charts_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("flowtrain.pages.page.VEGA", "absent.js")
    assert main(["report", str(started(tmp_path / "run"))]) == 1
    assert "absent.js: this FlowTrain was built without the library" in capsys.readouterr().err
    assert not (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("metrics.jsonl", b'{"step":0}\n'),
        ("metrics.jsonl", b"not JSON\n"),
        ("timing.jsonl", b'{"step":"x"}\n'),
        ("eval.jsonl", b"[1]\n"),
        ("plan.log", b'{"step":0,"documents":3}\n'),
        ("plan.log", b'{"step":0,"kind":"correction"}\n'),
        ("events/encoder.0.events", b"FTEVENTS"),
        ("config.yaml", b"run: "),
        ("layout.json", b"{}"),
        ("plan.json", b"{}"),
        ("strips.jsonl", b'{"expected": "1", "read": "1", "png": "?"}\n'),
        ("ended", b"\xff"),
        ("ended", b"started 2001-09-09 01:46:30\n"),
    ],
)
def test_a_damaged_file_is_named(
    file: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = started(tmp_path / "run"), tmp_path / "page.html"
    write_logs(run, [4.0])
    write_events(run)
    run.joinpath(file).write_bytes(content)
    assert main(["report", str(run), "--out", str(out)]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert str(run / file) in said
    assert "; " in said
    assert not out.exists()
