"""Configuration of evaluations: fields `eval.*`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flowtrain.config.checks import not_negative, positive, require


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalConfig:
    """Evaluation of the model during the run, on held-out samples that it is not trained on."""

    path: Path | None = None
    """Held-out samples, in the formats of `data.path`; without `path` and `dataset`, the run
    evaluates nothing."""
    dataset: str | None = None
    """Function that returns the held-out samples, as `data.dataset`; exclusive with `path`."""
    image_root: Path | None = None
    """Base folder of their relative image paths; by default `data.image_root`, or else the folder
    that contains `path`."""
    every: int = 0
    """Steps between evaluations; the last step is always evaluated, and with 0 no other."""
    samples: int | None = None
    """Number of samples to evaluate, from the first one on; null takes all."""
    answers: int = 0
    """Number of samples, from the first one on, whose last answer the model generates greedily in
    each evaluation."""
    answer_tokens: int = 64
    """Maximum tokens of a generated answer."""
    keep_best: bool = True
    """Save a checkpoint after each evaluation, and keep that of the lowest loss besides the
    `checkpoint.keep` newest."""

    def __post_init__(self) -> None:
        require(
            self.path is None or self.dataset is None,
            f"eval.path={self.path}, eval.dataset={self.dataset}: give one of the two: path is a "
            "file or folder, dataset a Python function as package.module:make",
        )
        not_negative(eval__every=self.every, eval__answers=self.answers)
        positive(eval__answer_tokens=self.answer_tokens)
        if self.samples is not None:
            positive(eval__samples=self.samples)
        require(
            self.has_data or (self.every == self.answers == 0 and self.samples is None),
            f"eval.every={self.every}, eval.answers={self.answers}, eval.samples={self.samples}: "
            "there is nothing to evaluate; give eval.path or eval.dataset, the held-out samples",
        )

    @property
    def has_data(self) -> bool:
        """Whether there are held-out samples."""
        return self.path is not None or self.dataset is not None
