from __future__ import annotations

import json
import math
from typing import Any

import pytest

from flowtrain.steps import StepPlan
from flowtrain.train.control.exchange import NonFiniteError, StepDecision, StepExchange, StepReport

WORLDS = ("backbone", "encoder")


class Store:
    """Keys in a dict; a wait for one without a value would last for ever, and is an error."""

    def __init__(self) -> None:
        self.keys: dict[str, str] = {}

    def put(self, key: str, value: Any) -> None:
        self.keys[key] = json.dumps(value)

    def get(self, key: str, *, writer: str) -> Any:
        return json.loads(self.keys[key])

    def delete(self, key: str) -> None:
        del self.keys[key]


def exchange_of(store: Store, world: str, *, mode: str, **options: Any) -> StepExchange:
    return StepExchange(
        store,  # type: ignore[arg-type]
        world=world,
        worlds=WORLDS,
        clip_norm=1.0,
        late=mode == "bounded" and world == "backbone",
        **{"nonfinite": "abort", **options},
    )


def report(
    exchange: StepExchange, step: int, norm: float, *, checksum: int = 7, num_targets: int = 4
) -> None:
    told = StepReport(
        norm=norm, checksum=checksum, loss_sum=8.0, num_targets=num_targets, seconds={"x": 1.0}
    )
    exchange.report(step, told)


def decide(exchange: StepExchange, step: int) -> StepDecision:
    return exchange.decide(StepPlan(step=step, kind="train", num_targets=4), 7)


def test_in_strict_both_worlds_wait_for_each_other_and_decide_the_same() -> None:
    store = Store()
    backbone, encoder = (exchange_of(store, world, mode="strict") for world in WORLDS)
    for step in range(5):
        report(backbone, step, 3.0)
        with pytest.raises(KeyError, match=f"report/{step}/encoder"):
            decide(backbone, step)
        report(encoder, step, 4.0)
        decision = decide(backbone, step)
        assert decision == decide(encoder, step)
        assert (decision.grad_norm, decision.loss) == (5.0, 2.0)
        assert decision.scale == pytest.approx(1 / 5)
    assert sorted(store.keys) == [f"report/{step}/{world}" for step in (3, 4) for world in WORLDS]


def test_in_bounded_the_backbone_does_not_wait_for_the_backward_of_the_encoder() -> None:
    store = Store()
    backbone, encoder = (exchange_of(store, world, mode="bounded") for world in WORLDS)
    report(backbone, 0, 3.0)
    with pytest.raises(KeyError, match="report/0/encoder"):
        decide(backbone, 0)
    report(encoder, 0, 4.0)
    decided = [decide(backbone, 0)]
    decide(encoder, 0)
    for step in range(1, 5):
        report(backbone, step, 3.0)
        decided.append(decide(backbone, step))
        report(encoder, step, 4.0 + step)
        assert decide(encoder, step).grad_norm == math.hypot(3.0, 4.0 + step)
    norms = [4.0, 4.0, 5.0, 6.0, 7.0]
    assert [one.grad_norm for one in decided] == [math.hypot(3.0, norm) for norm in norms]
    # Each norm that is logged is of a step that is named.
    assert [one.norms for one in decided] == [
        {"backbone": (step, 3.0), "encoder": (max(step - 1, 0), norm)}
        for step, norm in enumerate(norms)
    ]
    # The seconds of each step of the encoder count once.
    assert [one.seconds["encoder"] for one in decided] == [{"x": 1.0}, {}, *[{"x": 1.0}] * 3]
    assert len(store.keys) == 4


def test_a_late_norm_counts_with_the_targets_of_its_own_step() -> None:
    store = Store()
    backbone, encoder = (exchange_of(store, world, mode="bounded") for world in WORLDS)
    # Half of the planned targets of step 1 were in skipped samples.
    for step, num_targets in enumerate([4, 2, 4]):
        report(backbone, step, 3.0, num_targets=num_targets)
        report(encoder, step, 4.0)
    norms = [decide(backbone, step).norms for step in range(3)]
    assert norms[1] == {"backbone": (1, 6.0), "encoder": (0, 4.0)}
    assert norms[2] == {"backbone": (2, 3.0), "encoder": (1, 8.0)}


@pytest.mark.parametrize("nonfinite", ["skip", "abort"])
def test_in_bounded_the_encoder_alone_answers_for_its_gradient(nonfinite: str) -> None:
    store = Store()
    backbone, encoder = (exchange_of(store, w, mode="bounded", nonfinite=nonfinite) for w in WORLDS)
    for step, norm in enumerate([4.0, math.nan, 4.0]):
        report(backbone, step, 3.0)
        report(encoder, step, norm)
        assert decide(backbone, step).action == "apply"
        if norm == 4.0:
            assert decide(encoder, step).action == "apply"
        elif nonfinite == "skip":
            assert decide(encoder, step).action == "skip"
        else:
            with pytest.raises(NonFiniteError, match="step 1: .* gradient norm=nan"):
                decide(encoder, step)


@pytest.mark.parametrize("mode", ["strict", "bounded"])
def test_a_world_that_executed_another_plan_is_an_error(mode: str) -> None:
    store = Store()
    backbone, encoder = (exchange_of(store, world, mode=mode) for world in WORLDS)
    for step, checksum in enumerate([7, 8]):
        report(backbone, step, 3.0)
        report(encoder, step, 4.0, checksum=checksum)
    decide(backbone, 0)
    late = 1 if mode == "strict" else 2
    report(backbone, 2, 3.0)
    with pytest.raises(RuntimeError, match="step 1: the encoder world executed another plan"):
        for step in range(1, late + 1):
            decide(backbone, step)
