"""Steps of chosen samples, in place of the planner's: for ranks that `cost/steps.py` starts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from flowtrain.config.schema import RunConfig
from flowtrain.data.text import CompactText
from flowtrain.models.family import Family
from flowtrain.steps import StepPlan
from flowtrain.train.assembly import planners
from flowtrain.train.assembly.sources import builder_of
from flowtrain.train.input.reads import SampleReads

STEPS = "FLOWTRAIN_BENCH_STEPS"
"""Environment variable: JSON file with the numbers of the samples of each step."""


class ChosenSource:
    """Plans of chosen samples, built as those of a run."""

    def __init__(self, config: RunConfig, family: Family, *, reads: SampleReads, **_: Any) -> None:
        self._reads = reads
        self._builder = builder_of(config, family)

    def __iter__(self) -> Iterator[tuple[StepPlan, dict[int, CompactText]]]:
        with open(os.environ[STEPS]) as file:
            steps: list[list[int]] = json.load(file)
        for step, chosen in enumerate(steps):
            reads = [self._reads.submit("meta_and_text", sample) for sample in chosen]
            samples = [self._reads.result(read) for read in reads]
            plan = self._builder.build(step, [meta for meta, _ in samples], cursor=0, dropped=0)
            yield plan, {meta.index: text for meta, text in samples}


def install() -> None:
    """Let the rank of this process take its steps from `ChosenSource`."""
    planners.source_of = ChosenSource
