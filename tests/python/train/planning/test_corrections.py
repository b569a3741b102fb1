from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy
import pytest

from flowtrain.config import ConfigError
from flowtrain.config.flow import FlowConfig
from flowtrain.data.sample_meta import SampleMeta
from flowtrain.steps import CorrectionEvent, Document, StepPlan
from flowtrain.train.planning.corrections import PlanCorrections, corrections_of
from flowtrain.train.state.corrections import check_corrections, read_corrections

SLOW = 700
ON = CorrectionEvent(step=3, state="on", factors={1: 1.2, 11: 1.3})
LATER = CorrectionEvent(step=6, state="on", factors={11: 1.4})
OFF = CorrectionEvent(step=8, state="off")


def samples(*lengths: int) -> list[SampleMeta]:
    return [
        SampleMeta(
            index=index, num_tokens=length, num_targets=1, grids=(), image_lengths=(), fit="whole"
        )
        for index, length in enumerate(lengths)
    ]


def write(log: Path, *events: CorrectionEvent, steps: int = 10) -> Path:
    """A `plan.log` with these events, each before the plan of its step."""
    lines = []
    for step in range(steps):
        lines += [event.to_json() for event in events if event.step == step]
        lines.append(StepPlan(step=step, kind="train").to_json())
    log.write_text("".join(f"{line}\n" for line in lines))
    return log


def planned(corrections: PlanCorrections, steps: range) -> tuple[list[float], list[Any]]:
    """Factor of a document of 700 tokens in each step, and the events that are logged."""
    factors, events = [], []
    for step in steps:
        (cost,) = corrections.corrected(step, samples(SLOW), [10.0])
        factors.append(cost / 10)
        if (event := corrections.event(step)) is not None:
            events.append(event)
    return factors, events


@pytest.mark.parametrize(
    ("first", "own", "factors", "logged"),
    [
        (0, (), [1, 1, 1, 1.3, 1.3, 1.3, 1.4, 1.4, 1, 1], [ON, LATER, OFF]),
        (5, (ON,), [1.3, 1.4, 1.4, 1, 1], [LATER, OFF]),
        (6, (ON,), [1.4, 1.4, 1, 1], [LATER, OFF]),
        # This log was not followed before.
        (
            5,
            (),
            [1.3, 1.4, 1.4, 1, 1],
            [CorrectionEvent(step=5, state="on", factors=ON.factors), LATER, OFF],
        ),
        (9, (ON, LATER, OFF), [1], []),
    ],
)
def test_the_corrections_of_a_log_hold_at_their_steps_also_in_a_resumed_run(
    tmp_path: Path,
    first: int,
    own: tuple[CorrectionEvent, ...],
    factors: list[float],
    logged: list[CorrectionEvent],
) -> None:
    followed = write(tmp_path / "followed.log", ON, LATER, OFF)
    log = write(tmp_path / "plan.log", *own, steps=first)
    corrections = corrections_of(FlowConfig(corrections=followed), log, first=first)
    assert corrections is not None
    assert planned(corrections, range(first, 10)) == (pytest.approx(factors), logged)


def test_a_resumed_run_goes_on_with_its_corrections_or_ends_them(tmp_path: Path) -> None:
    log = write(tmp_path / "plan.log", ON, steps=5)
    learning = corrections_of(FlowConfig(correct=True), log, first=5)
    assert learning is not None
    assert planned(learning, range(5, 8)) == (pytest.approx([1.3] * 3), [])
    plain = corrections_of(FlowConfig(), log, first=5)
    assert plain is not None
    ended = CorrectionEvent(step=5, state="off")
    assert planned(plain, range(5, 8)) == ([1] * 3, [ended])
    # A run that has never been corrected has none.
    assert corrections_of(FlowConfig(), write(log, steps=5), first=5) is None
    assert corrections_of(FlowConfig(), tmp_path / "new.log", first=0) is None


def test_measured_times_correct_the_steps_that_are_planned_later(tmp_path: Path) -> None:
    log = tmp_path / "plan.log"
    corrections = corrections_of(FlowConfig(correct=True), log, first=0)
    assert corrections is not None
    random = numpy.random.default_rng(1)
    ahead, executed, events = 4, [], []
    for step in itertools.count():
        lengths = random.choice([100, 300, SLOW, 1000, 1500, 2000], 32).tolist()
        metas = samples(*lengths)
        corrections.corrected(step, metas, [float(length) for length in lengths])
        if (event := corrections.event(step)) is not None:
            events.append(event)
            break
        documents = [
            Document(
                sample=m.index, num_tokens=m.num_tokens, num_targets=1, image_tokens=0, grids=()
            )
            for m in metas
        ]
        # Four ranks with two slots of four documents.
        of_ranks = tuple(
            tuple(tuple(documents[i : i + 4]) for i in (r, r + 4)) for r in (0, 8, 16, 24)
        )
        executed.append(StepPlan(step=step, kind="train", slots=2, documents=of_ranks))
        if step >= ahead:
            plan = executed[step - ahead]
            true = [
                sum(d.num_tokens * (1.5 if d.num_tokens == SLOW else 1) for d in slot)
                for rank in plan.documents
                for slot in rank
            ]
            corrections.measured(plan, [t * random.normal(1, 0.02) for t in true])
        assert step < 60
    (event,) = events
    assert (event.state, event.step) == ("on", step)
    assert event.factors == pytest.approx({11: 1.5}, abs=0.05)
    (cost,) = corrections.corrected(step + 1, samples(SLOW), [10.0])
    assert cost == 10 * event.factors[11]


def test_bad_logs_are_refused_by_name_and_line(tmp_path: Path) -> None:
    log = tmp_path / "plan.log"
    with pytest.raises(ConfigError, match=r"flow\.corrections=.*plan\.log: there is no such file"):
        check_corrections(FlowConfig(corrections=log))
    write(log, ON)
    check_corrections(FlowConfig(corrections=log))
    assert read_corrections(log) == [ON]
    text = log.read_text()
    for bad in (
        text.replace("1.3", "-1.3"),
        text.replace('"on"', '"On"'),
        text.replace('"factors":{', '"factors":{"x":1,'),
    ):
        log.write_text(bad)
        with pytest.raises(ConfigError, match=r"plan\.log:4: "):
            check_corrections(FlowConfig(corrections=log))
    log.write_text('{"messages":[]}\n')
    with pytest.raises(ConfigError, match=r"flow\.corrections=.*plan\.log: it is no plan\.log"):
        check_corrections(FlowConfig(corrections=log))
    with pytest.raises(ConfigError, match=r"flow\.correct=true with flow\.corrections="):
        FlowConfig(correct=True, corrections=log)
