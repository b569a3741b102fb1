"""A rerun writes the same logs, also if it was killed and resumed."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from forked_ranks import failure, forked_ranks, trained
from support import Run, descendants, left_by, run_tree
from terminals import rows

from flowtrain.config import ConfigError, RunConfig, from_dict
from flowtrain.train.launch.host import RunHost
from flowtrain.train.launch.run import train
from flowtrain.train.state.checkpoint_files import valid_checkpoints

SHAPE = {"encoder_ranks": 2, "backbone_ranks": 2}
COLOCATED = {"ranks": 2}
FULL = {"encoder": {"sharding": "full"}, "backbone": {"sharding": "full"}}
MIXED = {"encoder": {"sharding": "optimizer"}, "backbone": {"sharding": "full", "shard_ranks": 2}}


@pytest.mark.limit(240)
@pytest.mark.parametrize(
    ("mode", "layout", "parallel"),
    [
        pytest.param("strict", SHAPE, FULL, marks=pytest.mark.deep),
        ("frozen", SHAPE, {}),
        pytest.param("strict", COLOCATED, {}, marks=pytest.mark.deep),
        ("strict", COLOCATED, FULL),
    ],
)
def test_a_rerun_and_a_resumed_run_write_equal_logs(
    mode: str, layout: dict[str, int], parallel: dict[str, Any], tmp_path: Path, data: Path
) -> None:
    def tree(name: str, *, offload: bool = False, **debug: Any) -> dict[str, Any]:
        return run_tree(
            tmp_path / name,
            data,
            # So few samples cannot be balanced: images move between colocated ranks.
            train={"steps": 9, "global_batch": 5},
            flow={**layout, "mode": mode},
            parallel=parallel,
            optim={"groups": [{"match": "model.visual.*", "lr": 1e-4}], "offload": offload},
            checkpoint={"every": 3},
            eval={"path": str(data / "train.jsonl"), "every": 2, "samples": 7, "keep_best": False},
            debug=debug,
        )

    trained(tree("first"))
    # On a CPU its states are where they were, so that a run may begin with it and go on without.
    disturbed = {"fault": "faults:never_end_ninth", "delay_ms": 50.0}
    killed = Run(tree("killed", offload=parallel is FULL, **disturbed))
    killed.wait_for_steps(5)
    killed.kill_all()
    trained(tree("killed"), resume=True)
    # The next run has removed the pool of the killed run.
    assert not left_by(killed.process.pid)
    for file in ("metrics.jsonl", "eval.jsonl", "final/model.safetensors"):
        first, again = ((tmp_path / run / file).read_bytes() for run in ("first", "killed"))
        assert first == again, file
    # What the killed attempt sent for the steps that were kept, a third, is counted. Of the last
    # evaluation, 7 of 80 samples, a run counts what was sent before its last step was logged.
    sent = [
        json.loads((tmp_path / run / "summary.json").read_text())["bytes_through_pool"]
        for run in ("first", "killed")
    ]
    assert sent[1] >= 0.9 * sent[0] > 0


@pytest.mark.limit(240)
@pytest.mark.parametrize("layout", [SHAPE, pytest.param(COLOCATED, marks=pytest.mark.deep)])
def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(
    layout: dict[str, int], tmp_path: Path, data: Path
) -> None:
    def tree(name: str, fault: str | None = None) -> dict[str, Any]:
        return run_tree(
            tmp_path / name,
            data,
            train={"steps": 9},
            flow=layout,
            parallel=FULL,
            checkpoint={"every": 3, "background": True},
            debug={"fault": fault},
        )

    trained(tree("first"))
    # The steps go on while the second save is being written.
    killed = Run(tree("killed", "faults:slow_second_save"))
    killed.wait_for_steps(8)
    killed.kill_all()
    found = sorted(path.name for path in tmp_path.glob("killed/checkpoints/*"))
    assert found == ["step-00000003", "step-00000006.part"]
    trained(tree("killed"), resume=True)
    for file in ("metrics.jsonl", "final/model.safetensors"):
        first, again = ((tmp_path / run / file).read_bytes() for run in ("first", "killed"))
        assert first == again, file


@pytest.mark.limit(240)
@pytest.mark.parametrize(
    ("mode", "layout"),
    [pytest.param("frozen", {"encoder_ranks": 1}, marks=pytest.mark.deep), ("strict", COLOCATED)],
)
def test_sigterm_to_every_process_saves_the_run_and_a_resume_writes_equal_logs(
    mode: str, layout: dict[str, int], tmp_path: Path, data: Path
) -> None:
    """systemd, `scancel` and preemption send it to all processes of a job."""

    def tree(name: str, **debug: Any) -> dict[str, Any]:
        return run_tree(
            tmp_path / name,
            data,
            train={"steps": 12, "global_batch": 5},
            data={"workers": 1},
            flow={**layout, "mode": mode, "plan_ahead": 1},
            debug=debug,
        )

    trained(tree("whole"))
    disturbed = {"fault": "faults:hold_ninth_until_stopped", "delay_ms": 50.0}
    # As users start it: with the masks, handlers and readers of executed processes.
    stopped = Run(tree("stopped", **disturbed), on_terminal=True, executed=True)
    stopped.wait_for_steps(2)
    below = descendants(stopped.process.pid)
    for process in [*below, stopped.process.pid]:
        os.kill(process, signal.SIGTERM)
    code, errors = stopped.wait()
    steps = len(stopped.metrics())
    # Readers are among these processes.
    assert len(below) > len(stopped.errors())
    assert (code, 2 <= steps < 12) == (143, True), errors
    assert f"stopped by SIGTERM after {steps} of 12 steps, which are saved" in errors
    # In rows of their own, although there is a bar.
    for said in ("SIGTERM: the run ends after the steps", f"run={stopped.folder}: stopped by SIG"):
        assert any(row.startswith(f"flowtrain: {said}") for row in rows(errors)), errors
    # The demo and benchmarks have no --resume of their own.
    assert f"`flowtrain train {stopped.folder}/config.yaml --resume`" in errors
    assert len(Run(tree("stopped"), resume=True).succeed()) == 12
    for file in ("metrics.jsonl", "final/model.safetensors"):
        whole, again = ((tmp_path / run / file).read_bytes() for run in ("whole", "stopped"))
        assert whole == again, file


@pytest.mark.limit(240)
def test_a_signal_to_ranks_that_the_user_started_saves_the_run(
    tmp_path: Path, data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """torchrun passes it on to its ranks; the process that hosts the run does not get it."""
    config = from_dict(
        run_tree(
            tmp_path / "run",
            data,
            train={"steps": 200},
            flow={**COLOCATED, "plan_ahead": 1},
            debug={"delay_ms": 20.0},
        )
    )
    metrics = config.run / "metrics.jsonl"

    def interrupt(host: RunHost) -> None:
        while not (metrics.exists() and metrics.read_text().count("\n") > 1):
            time.sleep(0.05)
        for lane in host.pool.lanes():
            if lane.label in config.flow.chosen.labels:
                os.kill(lane.pid, signal.SIGTERM)

    def ranks(config: RunConfig, host: RunHost, *, resume: bool) -> None:
        thread = threading.Thread(target=interrupt, args=(host,))
        thread.start()
        forked_ranks(config, host, resume=resume)
        thread.join()

    with pytest.raises(SystemExit, match="143"):
        train(config, run_ranks=ranks)
    steps = metrics.read_text().count("\n")
    assert (
        f"stopped by SIGTERM after {steps} of 200 steps, which are saved" in capfd.readouterr().err
    )


@pytest.mark.limit(240)
@pytest.mark.parametrize(
    ("dtype", "limit"), [pytest.param("float32", 1e-5, marks=pytest.mark.deep), ("float64", 1e-9)]
)
@pytest.mark.parametrize(
    "layouts",
    [
        ((COLOCATED, {}), (SHAPE, FULL)),
        pytest.param(((SHAPE, FULL), ({"ranks": 1}, {})), marks=pytest.mark.deep),
        pytest.param((({"ranks": 4}, MIXED), ({"ranks": 3}, {})), marks=pytest.mark.deep),
    ],
)
def test_a_run_is_resumed_in_another_layout(
    layouts: tuple[tuple[dict[str, int], dict[str, Any]], ...],
    dtype: str,
    limit: float,
    tmp_path: Path,
    data: Path,
) -> None:
    def tree(name: str, layout: tuple[dict[str, int], dict[str, Any]]) -> dict[str, Any]:
        flow, parallel = layout
        return run_tree(
            tmp_path / name,
            data,
            model={"dtype": dtype},
            train={"steps": 6},
            flow=flow,
            parallel=parallel,
            checkpoint={"every": 3},
        )

    whole = trained(tree("whole", layouts[0]))
    changed = tree("changed", layouts[0])
    trained(changed)
    for left in tmp_path.glob("changed/checkpoints/step-00000006"):
        shutil.rmtree(left)
    resumed = trained(tree("changed", layouts[1]), resume=True)
    assert [step["samples"] for step in resumed] == [step["samples"] for step in whole]
    for again, step in zip(resumed[3:], whole[3:], strict=True):
        assert again["loss"] == pytest.approx(step["loss"], rel=limit)


@pytest.mark.limit(240)
def test_sources_are_drawn_by_weight_and_a_resume_goes_on_in_their_order(
    tmp_path: Path, data: Path
) -> None:
    lines = data.joinpath("train.jsonl").read_text().splitlines(keepends=True)
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    one.write_text("".join(lines[:10]))
    two.write_text("".join(lines[10:30]))
    sources = [{"path": str(one), "weight": 2}, {"path": str(two), "weight": 0.5}]
    tree = run_tree(
        tmp_path / "run",
        data,
        data={"path": None, "sources": sources, "image_root": str(data)},
        flow=COLOCATED,
        train={"steps": 8},
        checkpoint={"every": 4},
    )
    whole = trained(tree)
    # Two epochs of 30 draws, and the begin of a third.
    drawn = Counter([sample for step in whole for sample in step["samples"]][:60])
    assert drawn == {sample: 4 if sample < 10 else 1 for sample in range(30)}
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000008")
    assert trained(tree, resume=True) == whole


@pytest.mark.deep
@pytest.mark.limit(240)
def test_reader_processes_give_the_same_run(tmp_path: Path, data: Path) -> None:
    alone = trained(run_tree(tmp_path / "alone", data))
    # The planner's thread ends long before the run: its readers must outlive it.
    helped = trained(run_tree(tmp_path / "helped", data, data={"workers": 2}))
    assert helped == alone


@pytest.mark.limit(240)
def test_a_finished_run_is_extended_by_its_new_configuration(
    tmp_path: Path, data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    trained(run_tree(folder, data, train={"steps": 3}))
    with pytest.raises(ConfigError, match=r"optim\.name='adamw' \(now 'sgd'\)"):
        train(from_dict(run_tree(folder, data, optim={"name": "sgd"})), resume=True)

    longer = run_tree(
        folder,
        data,
        train={"steps": 5},
        optim={"lr": 2e-3},
        flow={"encoder_ranks": 2, "backbone_ranks": 2},
    )
    rates = [step["lr"] for step in trained(longer, resume=True)]
    assert rates[3:] == pytest.approx([1e-3 * (1 + math.cos(math.pi * s / 5)) for s in (3, 4)])

    weights = folder / "final" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:100])
    assert train(from_dict(longer), resume=True)["steps"] == 5
    assert weights.read_bytes() == whole
    assert "all 5 steps are trained already" in capfd.readouterr().err


@pytest.mark.limit(240)
@pytest.mark.parametrize(
    ("mode", "layout", "where"),
    [
        ("strict", {"encoder_ranks": 1, "backbone_ranks": 1}, "heldout"),
        ("frozen", {"encoder_ranks": 1, "backbone_ranks": 1}, "heldout"),
        ("strict", COLOCATED, "train"),
    ],
)
def test_steps_before_a_sample_that_cannot_be_used_are_saved(
    mode: str, layout: dict[str, int], where: str, tmp_path: Path, data: Path
) -> None:
    lines = data.joinpath("train.jsonl").read_text().splitlines(keepends=True)
    bad = data / "bad.jsonl"  # Beside its images.
    bad.write_text("".join([*lines[:9], '{"messages":[{"role":"user","content":"Q"}]}\n']))
    tree = run_tree(
        tmp_path / "run",
        data,
        data={"path": str(bad if where == "train" else data / "train.jsonl"), "shuffle": False},
        train={"steps": 4, "global_batch": 4},
        flow={**layout, "mode": mode},
        eval={"path": str(bad), "every": 2} if where == "heldout" else {},
    )
    assert "bad.jsonl:10: no targets" in failure(tree)
    checkpoints = tmp_path / "run" / "checkpoints"
    assert valid_checkpoints(tmp_path / "run").keys() == {2}, list(checkpoints.iterdir())
    if where == "heldout":
        bad.write_text("".join(lines[:9]))
        trained(tree, resume=True)
        logged = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in logged] == list(range(4))
