from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from flowtrain.config.data import DataConfig
from flowtrain.config.evaluation import EvalConfig
from flowtrain.config.flow import FlowConfig
from flowtrain.config.model import ModelConfig
from flowtrain.config.schema import RunConfig
from flowtrain.config.train import TrainConfig
from flowtrain.data import DataError
from flowtrain.data.mixture import MixedOrder
from flowtrain.data.order import DrawOrder, SampleOrder
from flowtrain.data.sample_meta import SampleMeta
from flowtrain.data.text import COMPACT, CompactText
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import SMALLEST, write_tiny_model
from flowtrain.steps import FIRST_EVALUATION, StepPlan
from flowtrain.train.assembly.sources import evaluations_of, source_of
from flowtrain.train.input.reads import SampleReads
from flowtrain.train.input.stream import StreamOrder
from flowtrain.train.planning.evaluations import EvaluationSource

SAMPLES = 7
STEPS = 5


class Reader:
    """Returns sizes without reading files; some samples are dropped."""

    def __init__(self, dropped: Callable[[int], bool]) -> None:
        self._dropped = dropped
        self.lines: list[int] = []

    def submit_all(
        self, calls: Sequence[tuple[str, tuple[int]]]
    ) -> list[Future[tuple[SampleMeta, CompactText]]]:
        return [self._submit(method, line) for method, (line,) in calls]

    def _submit(self, method: str, line: int) -> Future[tuple[SampleMeta, CompactText]]:
        assert method.endswith("meta_and_text")
        self.lines.append(line)
        fit: Literal["dropped", "whole"] = "dropped" if self._dropped(line) else "whole"
        done: Future[tuple[SampleMeta, CompactText]] = Future()
        meta = SampleMeta(
            index=line, num_tokens=10 + line, num_targets=3, grids=(), image_lengths=(), fit=fit
        )
        done.set_result((meta, np.empty(meta.num_tokens, dtype=COMPACT)))
        return done


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    write_tiny_model(tmp_path / "model", SMALLEST)
    return RunConfig(
        run=tmp_path / "run",
        model=ModelConfig(config=tmp_path / "model"),
        data=DataConfig(path=tmp_path / "data.jsonl", oversize="drop"),
        train=TrainConfig(steps=STEPS, global_batch=4, microbatch_tokens=64),
        flow=FlowConfig(ranks=1),
    )


def plans(
    config: RunConfig, reader: Reader, order: DrawOrder | None = None, **start: int
) -> list[StepPlan]:
    pool: Any = reader
    source = source_of(
        config,
        family_for(config.model.folder),
        reads=SampleReads(pool, config.data.path, timeout_s=60),
        order=order or MixedOrder([SAMPLES], [SAMPLES], seed=config.train.seed, shuffle=True),
        **start,
    )
    steps = list(source)
    assert all(set(texts) == set(plan.samples) for plan, texts in steps)
    return [plan for plan, _ in steps]


def test_dropped_samples_are_drawn_and_counted_and_resume_continues_after_them(
    config: RunConfig,
) -> None:
    reader = Reader(lambda line: line in (2, 5))
    made = plans(config, reader)
    order = SampleOrder(SAMPLES, config.train.seed, shuffle=True)
    drawn = [order.index(cursor) for cursor in range(made[-1].cursor)]
    assert [s for plan in made for s in plan.samples] == [n for n in drawn if n not in (2, 5)]
    assert [len(plan.samples) for plan in made] == [4] * STEPS
    before = 0
    for plan in made:
        assert plan.cursor - before == len(plan.samples) + plan.dropped
        before = plan.cursor
    assert sum(plan.dropped for plan in made) == sum(n in (2, 5) for n in drawn) > 0
    # Only samples of a step are read.
    assert reader.lines == drawn
    for step in range(1, STEPS):
        again = plans(
            config, Reader(lambda line: line in (2, 5)), step=step, cursor=made[step - 1].cursor
        )
        assert [p.to_json() for p in again] == [p.to_json() for p in made[step:]]


def test_a_file_of_dropped_samples_alone_is_an_error(config: RunConfig) -> None:
    with pytest.raises(DataError, match=r"none of 7 samples fits .*=64 with data\.oversize=drop"):
        plans(config, Reader(lambda line: True))
    lonely = plans(config, Reader(lambda line: line != 3))
    assert [plan.samples for plan in lonely] == [(3, 3, 3, 3)] * STEPS


class StreamStub:
    """Has read one record more than it was asked for, in epochs of 7."""

    def __init__(self) -> None:
        self.records = 0

    def submit_all(self, calls: list[tuple[str, tuple[int, int]]]) -> list[Future[tuple[int, int]]]:
        [(_, (sample, end))] = calls
        self.records = min(sample + 3, end)
        done: Future[tuple[int, int]] = Future()
        done.set_result((self.records, SAMPLES if self.records > SAMPLES else 0))
        return [done]


def test_a_stream_is_planned_in_its_order_and_must_have_a_sample_that_fits(
    config: RunConfig,
) -> None:
    def order(stream: Any, **start: int) -> StreamOrder:
        return StreamOrder(SampleReads(stream, "stream", timeout_s=60), batch=4, **start)

    stream, reader = StreamStub(), Reader(lambda line: line % 3 == 0)
    made = plans(config, reader, order(stream))
    drawn = [number for number in range(40) if number % 3][: 4 * STEPS]
    assert [sample for plan in made for sample in plan.samples] == drawn
    assert reader.lines == list(range(made[-1].cursor))
    assert stream.records == made[-1].cursor
    again = plans(
        config,
        Reader(lambda line: line % 3 == 0),
        order(StreamStub(), cursor=made[1].cursor),
        step=2,
        cursor=made[1].cursor,
    )
    assert [plan.to_json() for plan in again] == [plan.to_json() for plan in made[2:]]
    with pytest.raises(DataError, match="none of 7 samples fits"):
        plans(config, Reader(lambda line: line > 4), order(StreamStub()))


def test_an_evaluation_has_each_held_out_sample_once_and_ends_with_a_plan(
    config: RunConfig, tmp_path: Path
) -> None:
    held_out = EvalConfig(path=tmp_path / "held_out.jsonl", every=2, samples=6)
    config = replace(config, eval=held_out)

    def source(dropped: Callable[[int], bool]) -> EvaluationSource:
        reader: Any = Reader(dropped)
        return evaluations_of(
            config,
            family_for(config.model.folder),
            reads=SampleReads(reader, "held_out.jsonl", timeout_s=60, attribute="held_out"),
            num_samples=SAMPLES,
            first=2,
        )

    made = [plan for plan, _ in source(lambda line: line == 1)]
    assert [plan.step - FIRST_EVALUATION for plan in made] == list(range(6))
    # After the fourth and after the last, the fifth, of the steps that are left.
    assert [plan.kind for plan in made] == 2 * ["eval", "eval", "end"]
    assert [plan.samples for plan in made] == 2 * [(0, 2, 3), (4, 5), ()]
    assert [plan.dropped for plan in made] == 2 * [0, 0, 1]
    with pytest.raises(DataError, match=r"held_out\.jsonl: none of 6 samples fits"):
        list(source(lambda line: True))
