"""How many samples a workload needs before its allocation of GPUs is trustworthy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy
from numpy.random import Generator
from numpy.typing import ArrayLike

from flowtrain.plan.arrays import FloatArray, seconds
from flowtrain.workloads import preset

Draw = Callable[[int, Generator], ArrayLike]
"""Draws so many samples: their work by module, in any unit, shape [num_samples, num_modules]."""

Allocate = Callable[[FloatArray], Sequence[int]]
"""GPUs of each module, from its mean work per sample, shape [num_modules]."""

_FARTHEST = math.log(2)  # A larger change of a ratio is of no interest.
_NEAREST = 1e-5
_LEAST_ERROR = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """Batches of one size.

    Attributes:
        samples: Samples of a batch.
        batches: Batches compared with the reference batch, up to the first that differs.
        same: Whether all gave the split of the reference batch.
    """

    samples: int
    batches: int
    same: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Stability:
    """Outcome of the test.

    Attributes:
        samples: Samples with which the split is stable; None if it is not up to the maximum.
        gpus: GPUs of each module, from the last reference batch.
        rounds: What was compared, in order.
        variation: Relative standard deviation of the ratio of the work of `module` to that of all
            others, for one sample; for n samples it is smaller by the square root of n.
        margin: Change of the logarithm of that ratio, and so its relative change if that is small,
            from which on the split is another one; infinite if a factor of 2 does not alter it.
        module: Number of the module whose margin is smallest, compared with its variation.
    """

    samples: int | None
    gpus: tuple[int, ...]
    rounds: tuple[Round, ...]
    variation: float
    margin: float
    module: int

    @property
    def sufficient(self) -> float:
        """Samples from which on six standard deviations are within the margin.

        Entrain's bound, (6 variation / margin)^2; 0 with an infinite margin.
        """
        return (6 * _tightness(self.variation, self.margin)) ** 2

    def explain(self, names: Sequence[str]) -> str:
        """The outcome in words, and in a second line the reason.

        Args:
            names: Names of the modules.
        """
        last = self.rounds[-1]
        split = ", ".join(f"{name} {gpus}" for name, gpus in zip(names, self.gpus, strict=True))
        if self.samples is not None:
            outcome = (
                f"stable at {self.samples} samples: all {last.batches} batches gave {split} GPUs"
            )
        else:
            outcome = (
                f"not stable up to {last.samples} samples: batch {last.batches} did not give the "
                f"split of the first one, {split} GPUs"
            )
        spread = 100 * self.variation / math.sqrt(last.samples)
        reason = (
            f"{names[self.module]} over the rest varies by {spread:.2g} % between batches of "
            f"{last.samples}; "
        )
        if math.isinf(self.margin):
            return f"{outcome}\n{reason}a factor of 2 would not change the split"
        return f"{outcome}\n{reason}a change by {100 * self.margin:.2g} % gives another split"


def stability(
    draw: Draw,
    allocate: Allocate,
    *,
    seed: int,
    start: int = 16,
    maximum: int = 1 << 16,
    alpha: float = 0.05,
    error: float = 0.05,
) -> Stability:
    """Test how many samples give a split of the GPUs that others would give too.

    A reference batch of n samples gives a split. Then k = ceil(ln(alpha) / ln(1 - error)) further
    batches must all give the same; otherwise n is doubled and the test begins again. If more than a
    share `error` of all batches gave another split than the reference, a round would pass with a
    probability of at most alpha. With the defaults k is 59.

    Args:
        draw: Draws samples.
        allocate: The rule, such as `proportional`, or the GPUs of an allocation by `solve`.
        seed: The same seed gives the same outcome.
        start: Samples of the first batches.
        maximum: Samples that a batch has at most.
        alpha: Probability to pass wrongly, of one round.
        error: Share of batches that may give another split.

    Raises:
        ValueError: An argument is out of its range, or work is negative, not finite, or of another
            shape.

    Source: Entrain, arXiv 2605.27918, algorithm 1.
    """
    if not 1 <= start <= maximum:
        raise ValueError(f"start={start}: must be from 1 to maximum={maximum}")
    batches = batches_to_compare(alpha, error)
    random = numpy.random.default_rng(seed)
    rounds: list[Round] = []
    samples = start
    while True:
        reference = _drawn(draw, samples, random)
        gpus = tuple(allocate(reference.mean(axis=0)))
        same, compared = True, 0
        while same and compared < batches:
            compared += 1
            same = tuple(allocate(_drawn(draw, samples, random).mean(axis=0))) == gpus
        rounds.append(Round(samples=samples, batches=compared, same=same))
        if same or 2 * samples > maximum:
            break
        samples *= 2
    ratios = [
        (_variation(reference, number), _margin(reference.mean(axis=0), number, allocate, gpus))
        for number in range(reference.shape[1])
    ]
    module = max(range(len(ratios)), key=lambda number: _tightness(*ratios[number]))
    variation, margin = ratios[module]
    return Stability(
        samples=samples if same else None,
        gpus=gpus,
        rounds=tuple(rounds),
        variation=variation,
        margin=margin,
        module=module,
    )


def batches_to_compare(alpha: float = 0.05, error: float = 0.05) -> int:
    """Batches that all agree with a probability of at most alpha if a share `error` does not.

    Raises:
        ValueError: A share is not between 0 and 1, or `error` takes too many batches.
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha={alpha}: must be greater than 0 and less than 1")
    if not _LEAST_ERROR <= error < 1:
        raise ValueError(f"error={error}: must be at least {_LEAST_ERROR} and less than 1")
    return math.ceil(math.log(alpha) / math.log(1 - error))


def proportional(work: FloatArray, *, gpus: int) -> tuple[int, ...]:
    """GPUs in proportion to the work, rounded by largest remainders, 1 per module at least.

    Raises:
        ValueError: There are fewer GPUs than modules, or no work.

    Source: Entrain, arXiv 2605.27918; the rounding is not given there.
    """
    work = seconds("work", work, work.shape)
    total = float(work.sum())
    if gpus < len(work) or not total > 0:
        raise ValueError(
            f"gpus={gpus}, work={work.tolist()}: must be at least 1 GPU per module, and some work"
        )
    # What is above one GPU per module is shared, so that the smallest module has its GPU.
    exact = numpy.maximum(gpus * work / total, 1.0)
    while exact.sum() > gpus * (1 + 1e-12):
        large = exact > 1
        exact[large] = numpy.maximum(exact[large] * (gpus - (~large).sum()) / exact[large].sum(), 1)
    whole = exact.astype(int)
    most = numpy.argsort(whole - exact, kind="stable")[: gpus - int(whole.sum())]
    whole[most] += 1
    return tuple(whole.tolist())


def of_preset(name: str) -> Draw:
    """Draws samples of a preset of `flowtrain.workloads`: FLOPs of encoder and decoder."""

    def draw(count: int, random: Generator) -> FloatArray:
        drawn = preset(name, count, seed=int(random.integers(1 << 62)))
        return numpy.stack([drawn.encoder_cost, drawn.cost], axis=1)

    return draw


def of_samples(work: ArrayLike) -> Draw:
    """Draws from given samples, with replacement.

    Args:
        work: Work by module, shape [num_samples, num_modules].

    Raises:
        ValueError: There is no sample, or the shape is another one.
    """
    given = numpy.asarray(work, numpy.float64)
    if given.ndim != 2 or not given.size:
        raise ValueError(
            f"work: shape must be [num_samples, num_modules], 1 of each at least, not "
            f"{list(given.shape)}"
        )

    def draw(count: int, random: Generator) -> FloatArray:
        return given[random.integers(len(given), size=count)]

    return draw


def _drawn(draw: Draw, count: int, random: Generator) -> FloatArray:
    work = numpy.asarray(draw(count, random))
    if work.ndim != 2 or len(work) != count or not work.shape[1]:
        raise ValueError(
            f"draw({count}): shape must be [{count}, num_modules], not {list(work.shape)}"
        )
    return seconds(f"draw({count})", work, work.shape)


def _variation(work: FloatArray, number: int) -> float:
    """Standard deviation of a ratio of sums for one sample, by its linear approximation."""
    own = work[:, number]
    rest = work.sum(axis=1) - own
    if not own.any() or not rest.any():
        return math.inf if own.any() != rest.any() else 0.0
    return float((own / own.mean() - rest / rest.mean()).std())


def _tightness(variation: float, margin: float) -> float:
    return 0.0 if math.isinf(margin) else variation / margin


def _margin(mean: FloatArray, number: int, allocate: Allocate, gpus: tuple[int, ...]) -> float:
    """The smallest relative change of one module's work that gives another split."""

    def changes(by: float) -> bool:
        scaled = mean.copy()
        scaled[number] *= math.exp(by)
        return tuple(allocate(scaled)) != gpus

    found = math.inf
    for sign in (1, -1):
        low = 0.0
        for by in numpy.geomspace(_NEAREST, _FARTHEST, 24).tolist():
            if by >= found:
                break
            if changes(sign * by):
                high = by
                for _ in range(6):
                    middle = (low + high) / 2
                    low, high = (low, middle) if changes(sign * middle) else (middle, high)
                found = high
                break
            low = by
    return found
