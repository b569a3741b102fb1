"""Source of the plans of evaluations."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flowtrain.data.sample_meta import SampleMeta
from flowtrain.data.text import CompactText
from flowtrain.steps import FIRST_EVALUATION, StepPlan
from flowtrain.train.input.reads import SampleReads
from flowtrain.train.planning.builder import PlanBuilder


class EvaluationSource:
    """Iterates over the plans of all evaluations, each with the texts of its samples.

    An evaluation has the held-out samples in their order, some in a batch, then the prompts of
    samples that are answered, and ends with a plan of kind "end".

    Args:
        losses: Makes the plans of batches whose loss is computed.
        answers: Makes the plans of prompts.
        reads: Reads of the held-out samples.
        num_samples: Number of held-out samples that are evaluated.
        num_answers: Number of samples, from the first one, that are answered.
        batch: Samples in a batch.
        evaluations: Number of evaluations.
        none_fits: The error that says that each held-out sample is dropped.
    """

    def __init__(
        self,
        *,
        losses: PlanBuilder,
        answers: PlanBuilder,
        reads: SampleReads,
        num_samples: int,
        num_answers: int,
        batch: int,
        evaluations: int,
        none_fits: Callable[[], Exception],
    ) -> None:
        self._losses = losses
        self._answers = answers
        self._reads = reads
        self._num_samples = num_samples
        self._num_answers = num_answers
        self._batch = batch
        self._evaluations = evaluations
        self._none_fits = none_fits
        self._next = FIRST_EVALUATION

    def __iter__(self) -> Iterator[tuple[StepPlan, dict[int, CompactText]]]:
        for _ in range(self._evaluations):
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
            raise self._none_fits()
        for samples, texts in self._batches("prompt", self._num_answers):
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
        for start in range(0, num_samples, self._batch):
            numbers = range(start, min(start + self._batch, num_samples))
            reads = self._reads.submit_all([(method, (sample,)) for sample in numbers])
            read = [self._reads.result(each) for each in reads]
            kept = [(meta, text) for meta, text in read if meta.fit != "dropped"]
            if kept:
                yield [meta for meta, _ in kept], {meta.index: text for meta, text in kept}

    def _number(self) -> int:
        self._next += 1
        return self._next - 1
