"""Corrected costs are events of `plan.log`, and runs that follow a log have equal plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from forked_ranks import trained
from support import Run, run_tree

from flowtrain.steps import CorrectionEvent

DECOUPLED = {"encoder_ranks": 1, "backbone_ranks": 2}
COLOCATED = {"ranks": 2}


@pytest.fixture(scope="module")
def lengths(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The samples of `data`; every eighth question has 70 more tokens."""
    lines = data.joinpath("train.jsonl").read_text().splitlines()
    samples = [json.loads(line) for line in lines]
    for number, sample in enumerate(samples):
        sample["messages"][0]["content"] += " 012345678" * (0 if number % 8 else 7)
    path = tmp_path_factory.mktemp("lengths") / "train.jsonl"
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return path


def lines_of(log: Path) -> tuple[list[CorrectionEvent], dict[int, bytes]]:
    """Events of a `plan.log`, and its plans by step."""
    lines = log.read_bytes().splitlines()
    events = [CorrectionEvent.from_json(x) for x in lines if CorrectionEvent.is_json_of(x)]
    plans = {json.loads(x)["step"]: x for x in lines if not CorrectionEvent.is_json_of(x)}
    return events, plans


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(DECOUPLED, id="decoupled"),
        pytest.param(COLOCATED, id="colocated", marks=pytest.mark.deep),
    ],
)
def test_an_event_changes_the_packing_from_its_step_on_and_no_samples_or_losses(
    layout: dict[str, int], tmp_path: Path, data: Path, lengths: Path
) -> None:
    def tree(name: str, **flow: Any) -> dict[str, Any]:
        return run_tree(
            tmp_path / name,
            data,
            model={"dtype": "float64"},
            data={"path": str(lengths), "image_root": str(data)},
            train={"steps": 6},
            flow={**layout, **flow},
        )

    plain = trained(tree("plain"))
    event = CorrectionEvent(step=3, state="on", factors={2: 3.0, 3: 3.0})
    log = tmp_path / "events.log"
    log.write_text(f"{event.to_json()}\n")
    corrected = trained(tree("corrected", corrections=str(log)))

    events, plans = lines_of(tmp_path / "corrected" / "plan.log")
    none, before = lines_of(tmp_path / "plain" / "plan.log")
    assert (events, none) == ([event], [])
    lines = (tmp_path / "corrected" / "plan.log").read_bytes().splitlines()
    assert CorrectionEvent.is_json_of(lines[3]), "it is in front of the plan of its step"
    assert [plans[step] == before[step] for step in range(3)] == [True] * 3
    documents = [[json.loads(p[s])["documents"] for s in range(3, 6)] for p in (plans, before)]
    assert documents[0] != documents[1]
    for step, other in zip(corrected, plain, strict=True):
        assert step["samples"] == other["samples"]
        assert step["loss"] == pytest.approx(other["loss"], rel=1e-9)


@pytest.mark.deep
@pytest.mark.parametrize("layout", [DECOUPLED, COLOCATED], ids=["decoupled", "colocated"])
def test_a_run_that_follows_the_log_of_a_killed_and_resumed_run_is_equal_to_it(
    layout: dict[str, int], tmp_path: Path, data: Path, lengths: Path
) -> None:
    def tree(name: str, fault: str = "slow_lengths", **flow: Any) -> dict[str, Any]:
        return run_tree(
            tmp_path / name,
            data,
            data={"path": str(lengths), "image_root": str(data)},
            train={"steps": 56},
            flow={**layout, "plan_ahead": 1, **flow},
            checkpoint={"every": 20},
            debug={"fault": f"faults:{fault}", "delay_ms": 5.0},
        )

    killed = Run(tree("learned", "slow_lengths_without_end", correct=True))
    killed.wait_for_steps(46)
    killed.kill_all()
    # In its first attempt the run has learned before the step where it resumes.
    earlier = [e for e in lines_of(tmp_path / "learned" / "plan.log")[0] if e.step < 40]
    assert earlier and earlier[-1].factors
    learned = tree("learned", correct=True)
    trained(learned, resume=True)
    log = tmp_path / "learned" / "plan.log"
    events, plans = lines_of(log)
    assert events[: len(earlier)] == earlier and len(plans) == 56

    trained(tree("followed", corrections=str(log)))
    for file in ("metrics.jsonl", "plan.log", "final/model.safetensors"):
        one, other = ((tmp_path / run / file).read_bytes() for run in ("learned", "followed"))
        assert one == other, file
