"""Corrections on simulated times: documents of one length in eight, and rows of eight of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
import pytest

from flowtrain.cost import correction as corrections
from flowtrain.cost.correction import Correction, benefit_s
from flowtrain.cost.slow_shapes import MeasuredRow, Rows, shape_of, slow_shapes

LENGTHS = 100 * numpy.arange(1, 25)
SLOW = {shape_of(700): 1.3, shape_of(1900): 1.5}
COST_S = 1e-4


def steps(
    slow: dict[int, float], *, ranks: int = 8, seed: int = 0, slow_rank: float = 1.0
) -> Iterator[list[MeasuredRow]]:
    """Rows of four microbatches a rank; one row in 50 takes three times as long."""
    random = numpy.random.default_rng(seed)
    while True:
        step = []
        for rank in [*range(ranks)] * 4:
            lengths = random.choice(LENGTHS, 8).tolist()
            cost = [length + length**2 / 10_000 for length in lengths]
            shapes = [shape_of(length) for length in lengths]
            true = sum(c * slow.get(s, 1.0) for c, s in zip(cost, shapes, strict=True))
            noise = random.normal(1, 0.03) * (3 if random.random() < 0.02 else 1)
            seconds = 1e-5 * true * noise * (slow_rank if rank == 0 else 1.0)
            step.append(MeasuredRow(rank, tuple(shapes), tuple(cost), seconds))
        yield step


def trained(correction: Correction, source: Iterator[list[MeasuredRow]], count: int) -> list[int]:
    """Observe some steps; return the number of those after which something changed."""
    return [n for n in range(count) if correction.observe(next(source), cost_s=COST_S)]


def test_slow_shapes_are_told_from_noise_hiccups_and_a_slow_rank() -> None:
    source = steps(SLOW, slow_rank=1.4)
    found = slow_shapes(Rows.joined(Rows(next(source)) for _ in range(40)))
    assert found == pytest.approx(SLOW, abs=0.05)


def test_a_correction_that_pays_stays_on_until_times_are_as_predicted() -> None:
    correction = Correction()
    source = steps(SLOW)
    changed = trained(correction, source, 100)
    assert (correction.state, changed[0] <= 39) == ("on", True)
    assert correction.factors == pytest.approx(SLOW, abs=0.05)

    again = Correction()
    assert trained(again, steps(SLOW), 100) == changed
    assert again.factors == correction.factors

    trained(correction, steps({}, seed=1), 60)
    assert (correction.state, correction.factors) == ("off", {})


@pytest.mark.parametrize(
    ("slow", "ranks"), [({}, 8), pytest.param(SLOW, 1, id="one rank has nothing to balance")]
)
def test_a_correction_that_does_not_pay_is_off_within_50_steps(
    slow: dict[int, float], ranks: int
) -> None:
    for seed in range(5):
        correction = Correction()
        source = steps(slow, ranks=ranks, seed=seed)
        changed = trained(correction, source, 50)
        assert correction.state == "off" and correction.factors == {}
        assert changed, "the run must learn that it is off"
        assert not trained(correction, source, 20)


def test_a_benefit_below_its_cost_is_none() -> None:
    correction = Correction()
    source = steps(SLOW)
    for _ in range(50):
        correction.observe(next(source), cost_s=1.0)
    assert correction.state == "off"


def test_the_benefit_is_the_wait_that_true_factors_save() -> None:
    source = steps(SLOW)
    rows = [Rows(next(source)) for _ in range(20)]
    right = numpy.mean([benefit_s(each, SLOW) for each in rows])
    wrong = numpy.mean([benefit_s(each, {shape_of(400): 1.3, shape_of(900): 1.5}) for each in rows])
    # The wait of eight ranks with equal predictions, under the true factors and without noise.
    waits = []
    for each in rows:
        late = 1e-5 * (each.predicted(SLOW) - each.predicted({}))
        of_ranks = numpy.bincount(each.ranks, weights=late - late.mean())
        waits.append(of_ranks.max())
    assert wrong < 0 < right < numpy.mean(waits)


def test_old_steps_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corrections, "_MAX_DOCUMENTS", 20 * 32 * 8)
    correction = Correction()
    trained(correction, steps(SLOW), 60)
    kept = sum(len(step.cost) for step in correction._steps)
    assert (correction.state, kept) == ("on", 20 * 32 * 8)
    moved = {shape_of(1200): 1.4}
    trained(correction, steps({**SLOW, **moved}, seed=2), 40)
    assert correction.factors == pytest.approx({**SLOW, **moved}, abs=0.08)
