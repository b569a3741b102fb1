from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from flowtrain.config.layout import RankLayout
from flowtrain.cost.flops import Grid
from flowtrain.steps.estimate import Rates, Work, candidates, step_seconds

FAST_UPDATES = Rates(flops=1.0, memory_bytes=1e30, reduce_bytes=1e30)


@dataclass(frozen=True)
class Size:
    index: int
    num_tokens: int
    num_targets: int
    grids: tuple[Grid, ...]

    @property
    def seconds(self) -> tuple[float, ...]:
        return ()

    @property
    def image_lengths(self) -> tuple[int, ...]:
        return tuple(frames * rows * columns for frames, rows, columns in self.grids)


def work(**changes: object) -> Work:
    """Eight samples with equal costs: 1 FLOP for the image and 2 for the backbone."""
    samples = [Size(index, 10, 5, ((1, 2, 2),)) for index in range(8)]
    return replace(
        Work(
            steps=[samples],
            cost=[[2.0] * 8],
            image_cost=lambda _grid: 1.0,
            mode="strict",
            recompute=False,
            trains_backbone=True,
            encoder_bytes=1.0,
            backbone_bytes=1.0,
            microbatch_tokens=100,
            item_tokens=8,
        ),
        **changes,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("mode", "layout", "expected"),
    [
        # Encoder 8 x 3 and backbone 8 x 6, on both cores.
        ("strict", RankLayout.colocated_on(2), (24 + 48) / 2),
        # One after the other, each on one core.
        ("strict", RankLayout.decoupled(1, 1), 24 + 48),
        # The encoder's forward beside the backbone.
        ("frozen", RankLayout.decoupled(1, 1), 48),
        ("frozen", RankLayout.colocated_on(2), (8 + 48) / 2),
        # The encoder's forward and backward beside the backbone.
        ("bounded", RankLayout.decoupled(1, 1), 48),
        ("bounded", RankLayout.colocated_on(1), 24 + 48),
    ],
)
def test_modules_run_side_by_side_only_if_nothing_makes_them_wait(
    mode: str, layout: RankLayout, expected: float
) -> None:
    seconds = step_seconds(work(mode=mode), layout, FAST_UPDATES, workers=2)
    assert seconds == pytest.approx(expected)


def test_the_reduction_of_a_large_model_makes_decoupled_ranks_faster() -> None:
    large = work(encoder_bytes=100.0, backbone_bytes=400.0)
    rates = replace(FAST_UPDATES, reduce_bytes=1.0)
    layouts = [RankLayout.colocated_on(2), RankLayout.decoupled(1, 1)]
    together, apart = (step_seconds(large, each, rates, workers=2) for each in layouts)
    assert together == pytest.approx(36 + 500)
    assert apart == pytest.approx(72)


def test_candidates_stay_within_the_ranks_and_divide_them_by_work() -> None:
    found = candidates(workers=8, max_ranks=12, encoder_share=0.25)
    assert all(len(each.labels) <= 12 for each in found)
    decoupled = {(each.encoder_ranks, each.backbone_ranks) for each in found if not each.colocated}
    assert decoupled == {(1, 7), (2, 6), (3, 5), (2, 10), (3, 9), (4, 8)}
    assert [str(each) for each in candidates(workers=8, max_ranks=1, encoder_share=0.25)] == [
        "colocated 1"
    ]
