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
    then the prompts of `eval.answers` samples, and ends with a plan of kind "end".

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
        self._losses = PlanBuilder(config, family, "eval")
        self._answers = PlanBuilder(config, family, "answer")
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
        used = 0
        for samples, texts in self._batches("meta_and_text", self._num_samples):
            used += len(samples)
            yield self._losses.build(self._number(), samples, cursor=0, dropped=0), texts
        if not used:
            data = self._config.held_out
            assert data is not None
            raise no_sample_fits(self._config, data, self._num_samples)
        answers = min(self._config.eval.answers, self._num_samples)
        for samples, texts in self._batches("prompt", answers):
            yield self._answers.build(self._number(), samples, cursor=0, dropped=0), texts
        yield StepPlan(step=self._number(), kind="end", dropped=self._num_samples - used), {}

    def _batches(
        self, method: str, num_samples: int
    ) -> Iterator[tuple[list[SampleMeta], dict[int, CompactText]]]:
        """Batches of the first samples that are not dropped, with their texts.

        Args:
            method: Method of the reader.
            num_samples: Number of samples to read.
        """
        batch = self._config.train.global_batch
        for start in range(0, num_samples, batch):
            numbers = range(start, min(start + batch, num_samples))
            reads = self._reads.submit_all([(method, (sample,)) for sample in numbers])
            read = [self._reads.result(each) for each in reads]
            kept = [(meta, text) for meta, text in read if meta.fit != "dropped"]
            if kept:
                yield [meta for meta, _ in kept], {meta.index: text for meta, text in kept}

    def _number(self) -> int:
        self._next += 1
        return self._next - 1
