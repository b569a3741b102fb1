"""Source of the plans of evaluations."""

from __future__ import annotations

from collections.abc import Iterator

from flowtrain.config.schema import RunConfig
from flowtrain.data.errors import no_sample_fits
from flowtrain.data.samples import SampleMeta
from flowtrain.data.text import CompactText
from flowtrain.models.family import Family
from flowtrain.steps import FIRST_EVALUATION, StepPlan
from flowtrain.train.input.reads import SampleReads
from flowtrain.train.planning.builder import PlanBuilder


class EvaluationSource:
    """Iterates over the plans of all evaluations of a run, each with the texts of its samples.

    An evaluation has the held-out samples in their order, `train.global_batch` of them in a batch,
    and ends with a plan of kind "end".

    Args:
        config: The run.
        reads: Reads of the held-out samples.
        num_samples: Number of held-out samples.
        family: Family of the model, for costs.
        first: First step that is trained; earlier steps have been evaluated.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        reads: SampleReads,
        num_samples: int,
        family: Family,
        first: int = 0,
    ) -> None:
        self._config = config
        self._reads = reads
        self._num_samples = min(num_samples, config.eval.samples or num_samples)
        self._builder = PlanBuilder(config, family, "eval")
        self._first = first
        self._next = FIRST_EVALUATION

    def __iter__(self) -> Iterator[tuple[StepPlan, dict[int, CompactText]]]:
        for step in range(self._first, self._config.train.steps):
            if self._config.is_evaluated(step):
                yield from self._evaluation()

    def _evaluation(self) -> Iterator[tuple[StepPlan, dict[int, CompactText]]]:
        """The plans of one evaluation.

        Raises:
            DataError: A sample cannot be used, or all are dropped.
        """
        batch = self._config.train.global_batch
        used = dropped = 0
        for start in range(0, self._num_samples, batch):
            samples, texts = self._read(start, min(start + batch, self._num_samples))
            used += len(samples)
            dropped += min(batch, self._num_samples - start) - len(samples)
            if samples:
                cursor = min(start + batch, self._num_samples)
                yield self._builder.build(self._number(), samples, cursor=cursor, dropped=0), texts
        if not used:
            data = self._config.held_out
            assert data is not None
            raise no_sample_fits(self._config, data, self._num_samples)
        yield StepPlan(step=self._number(), kind="end", dropped=dropped), {}

    def _read(self, start: int, end: int) -> tuple[list[SampleMeta], dict[int, CompactText]]:
        """Samples that are not dropped, with their texts."""
        reads = [self._reads.submit("meta_and_text", sample) for sample in range(start, end)]
        read = [self._reads.result(each) for each in reads]
        kept = [(meta, text) for meta, text in read if meta.fit != "dropped"]
        return [meta for meta, _ in kept], {meta.index: text for meta, text in kept}

    def _number(self) -> int:
        self._next += 1
        return self._next - 1
