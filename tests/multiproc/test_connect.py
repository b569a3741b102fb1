"""A loop that is connected to an encoder of its own trains as the plain loop does.

`benchmarks/bench_connect.py` compares many more combinations.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import connect_parity
import pytest
import torch
from bench_connect import COLOCATED_2, SGD, LoopRow, misses
from connect_loop import Loop, load
from connect_parity import (
    encoder,
    final_weights,
    largest_difference,
    plain,
    ranks_of,
    run,
    write_weights,
)
from forked import ForkedPopen
from support import nothing_left
from transformers import AutoModelForImageTextToText

import flowtrain
from flowtrain.config import ConfigError
from flowtrain.steps import StepPlan
from flowtrain.train.connect.part import FlowError
from flowtrain.train.control.ending import JobFailed
from flowtrain.train.state.checkpoint_files import valid_checkpoints

Steps = Generator[tuple[Any, Any], None, None]
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect_parity, "Popen", ForkedPopen)


@pytest.fixture
def loop(tmp_path: Path, data: Path) -> Loop:
    """A loop on a model with weights."""
    folder = tmp_path / "model"
    shutil.copytree(data / "model", folder)
    write_weights(folder)
    return Loop(model=str(folder), data=str(data / "train.jsonl"), out=str(tmp_path), steps=4)


@pytest.mark.deep
@pytest.mark.limit(240)
@pytest.mark.parametrize(
    "row",
    [
        LoopRow(ranks=2, wrap="ddp", encoder_ranks=2, processed=True, evaluates=True, **SGD),
        LoopRow(mode="frozen", lora=True, evaluates=True, **SGD),
    ],
    ids=str,
)
def test_a_connected_loop_equals_the_plain_loop(row: LoopRow, tmp_path: Path) -> None:
    result = row.measure(tmp_path, steps=6)
    assert result["microbatches"] > result["clipped_steps"] == result["steps"]
    assert not misses(row, result), result


@pytest.mark.deep
@pytest.mark.limit(240)
def test_a_resumed_colocated_loop_equals_the_plain_loop(tmp_path: Path) -> None:
    row = LoopRow(wrap="fsdp", evaluates=True, resumed=True, **SGD, **COLOCATED_2)
    with encoder(tmp_path / "job") as command:
        result = row.measure(tmp_path, steps=4)
        assert not misses(row, result), result
        # No encoder rank is wanted.
        assert command.process.wait(60) == 2
        assert "the loop has layout='colocated', so that its own 2 ranks" in command.errors()
    lines = (tmp_path / "job" / "plan.log").read_text().splitlines()
    items = [item for line in lines for item in StepPlan.from_json(line).items]
    assert any(item.is_dummy for item in items)
    assert any(item.encoder != item.reader for item in items if not item.is_dummy)


def steps_of(flow: Any, model: Any, loop: Loop, *, steps: int | None = None) -> Iterator[int]:
    """Steps of a loop, each after its update."""
    for step in flow.steps(loop.data, samples=2, max_tokens=loop.max_tokens, steps=steps):
        for batch in step:
            (model(**batch).loss * batch.weight).backward()
        flow.step()
        yield step.number


@pytest.mark.deep
@pytest.mark.limit(240)
def test_a_notebook_cell_that_failed_or_was_interrupted_is_run_again(
    loop: Loop, tmp_path: Path
) -> None:
    job = tmp_path / "job"
    numbers: list[int] = []

    def cell(ends: Callable[[], Any], *, at: int) -> tuple[Any, torch.optim.Optimizer]:
        model, optimizer = load(loop)
        with flowtrain.connect(job, model, optimizer, save_every=1, resume=True) as flow:
            for number in steps_of(flow, model, loop, steps=5):
                numbers.append(number)
                if number == at:
                    ends()
        return model, optimizer

    with nothing_left(), encoder(job) as command:
        with pytest.raises(JobFailed, match=r"^rank encoder.0 \(pid \d+\) died$"):
            cell(command.process.kill, at=1)  # Its rank ends with it.
        assert command.process.wait(60) == -signal.SIGKILL
        with (
            pytest.raises(ConfigError, match="it holds a run already"),
            flowtrain.connect(job, *load(loop)) as flow,
        ):
            next(flow.steps(loop.data, samples=2, max_tokens=loop.max_tokens))
    with nothing_left(), encoder(job) as command:
        with pytest.raises(KeyboardInterrupt):
            cell(lambda: signal.raise_signal(signal.SIGINT), at=3)
        assert command.process.wait(60) == 1
        errors = command.errors()
    failed = re.escape(f"rank backbone.0 (pid {os.getpid()}) failed: KeyboardInterrupt")
    assert re.search(rf"^flowtrain: .* rank encoder.0 \(pid \d+\): {failed};", errors, re.M)
    with nothing_left(), encoder(job) as command:
        used = cell(lambda: None, at=4)
        assert command.process.wait(60) == 0
    with pytest.raises(ConfigError, match="has no tower; load the model again"):
        flowtrain.connect(job, *used).__enter__()
    # Of the last step before each end the checkpoint may not be complete.
    again = [n for n, number in enumerate(numbers) if n and number <= numbers[n - 1]]
    assert len(again) <= 2 and set(numbers) == set(range(5)) and numbers[-1] == 4


@pytest.mark.limit(240)
def test_a_loop_in_another_form_is_refused_or_trains(loop: Loop, tmp_path: Path) -> None:
    def steps(name: str, model: Any, optimizer: Any, **options: Any) -> Steps:
        with flowtrain.connect(
            tmp_path / name, model, optimizer, layout="colocated", **options
        ) as flow:
            for step in flow.steps(loop.data, samples=4, max_tokens=loop.max_tokens, steps=2):
                yield flow, step

    model, optimizer = load(loop)
    job = tmp_path / "file"
    job.touch()
    for wrong, said in (({"time_out_s": 5}, "flow.time_out_s"), ({"keep": 0}, "checkpoint.keep=0")):
        with pytest.raises(ConfigError, match=said):
            next(steps("wrong", model, optimizer, **wrong))
    with pytest.raises(ConfigError, match=f"^job={job}: it is a file; give a folder$"):
        next(steps("file", model, optimizer))
    with (
        nothing_left(),
        pytest.raises(FlowError, match=r"^flow\.steps: .* no backward before the next one"),
    ):
        for _, step in steps("late", model, optimizer):  # Still whole.
            sum(model(**batch).loss * batch.weight for batch in step).backward()
    # All parameters are in the optimizer, and the loop asks for no microbatch behind the last.
    model, _ = load(replace(loop, mode="frozen"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    norms = []
    with nothing_left():
        running = steps("frozen", model, optimizer, mode="frozen")
        for flow, step in running:
            for _, batch in zip(range(len(step)), step, strict=False):
                (model(**batch).loss * batch.weight).backward()
            norms.append(flow.step())
            if not (child := os.fork()):
                with suppress(SystemExit):
                    running.throw(SystemExit)  # Leaves the block, whose job goes on.
                os._exit(3)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert len(norms) == 2 and min(norms) > 0
    assert valid_checkpoints(tmp_path / "frozen").keys() == {2}


def lines(program: Path) -> list[str]:
    """Its lines behind the docstring, without their indentation."""
    code = program.read_text().split('"""')[2]
    return [line.strip() for line in code.splitlines() if line.strip()]


@pytest.mark.limit(240)
def test_the_example_changes_eight_lines_and_trains_the_same_model(
    loop: Loop, data: Path, tmp_path: Path
) -> None:
    twin, connected = EXAMPLES / "connect_plain.py", EXAMPLES / "connect.py"
    assert len(set(lines(connected)) - set(lines(twin))) <= 8
    head = data.joinpath("train.jsonl").read_text().splitlines(keepends=True)[:24]
    samples = data / "head.jsonl"  # Beside its images.
    samples.write_text("".join(head))
    with encoder(tmp_path / "connect.job") as command:
        for program in (connected, twin):
            out = tmp_path / program.stem
            words = [sys.executable, str(program), loop.model, str(samples), str(out)]
            done = subprocess.run(words, check=False, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert "step 2: gradient norm" in done.stdout
        assert command.process.wait(60) == 0
    found, expected = (
        AutoModelForImageTextToText.from_pretrained(tmp_path / program.stem).state_dict()
        for program in (connected, twin)
    )
    assert largest_difference(found, expected)[0] <= 1e-5


@pytest.mark.deep
@pytest.mark.limit(240)
def test_what_ends_one_rank_of_a_loop_is_named_by_all_others(loop: Loop, tmp_path: Path) -> None:
    ddp = replace(loop, ranks=2, wrap="ddp", steps=10_000)
    absent = tmp_path / "absent.jsonl"
    with ranks_of(replace(ddp, data=str(absent))) as ranks:
        assert [rank.process.wait(120) for rank in ranks] == [1, 1]
        wrong = f"DataError: {absent}: "
        assert wrong in ranks[0].errors()
        named = f"JobFailed: rank backbone.0 (pid {ranks[0].process.pid}) failed: {wrong}"
        assert named in ranks[1].errors()
    with nothing_left(), encoder(tmp_path / "job") as command, ranks_of(ddp) as ranks:
        first, killed = ranks
        assert killed.process.stdout is not None and killed.process.stdout.readline() == "0\n"
        killed.process.kill()
        for other in (first, command):
            assert other.process.wait(60) == 1
            assert f"rank backbone.1 (pid {killed.process.pid}) died" in other.errors()


@pytest.mark.deep
@pytest.mark.limit(240)
def test_a_loop_whose_host_was_killed_is_resumed(loop: Loop, tmp_path: Path) -> None:
    fsdp = replace(loop, ranks=2, wrap="fsdp")
    with (
        nothing_left() as launchers,
        encoder(tmp_path / "job") as command,
        ranks_of(fsdp) as ranks,
    ):
        host, other = ranks
        launchers.add(host.process.pid)
        assert host.process.stdout is not None
        assert [host.process.stdout.readline() for _ in range(2)] == ["0\n", "1\n"]
        host.process.kill()
        died = rf"rank (backbone\.0|host) \(pid {host.process.pid}\) died"
        for each in (other, command):
            assert each.process.wait(60) == 1
            assert re.search(died, each.errors())
    run(fsdp)
    [first, *_] = torch.load(tmp_path / "0.pt")["losses"]
    assert first == 2
    assert largest_difference(final_weights(fsdp), plain(fsdp).weights)[0] <= 1e-5
