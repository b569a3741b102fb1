from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from flowtrain.config.flow import Mode
from flowtrain.config.layout import RankLayout
from flowtrain.config.parallel import ParallelConfig
from flowtrain.config.train import LOGIT_BYTES
from flowtrain.cost import Counts, Layer, Product
from flowtrain.cost.flops import Grid
from flowtrain.cost.timing import PassSeconds
from flowtrain.plan.host.cores import candidates, choose_on_cores, step_seconds
from flowtrain.plan.host.sampled import SampledModel, SampledSteps


@dataclass(frozen=True)
class Size:
    index: int
    num_tokens: int = 10
    num_targets: int = 5
    grids: tuple[Grid, ...] = ((1, 2, 2),)
    seconds: tuple[float, ...] = ()
    image_lengths: tuple[int, ...] = (4,)


def counts(num_tokens: int, grids: Sequence[Grid], *, num_targets: int) -> Counts:
    return Counts(patches=len(grids), tokens=num_tokens)


MODEL = SampledModel(
    layers=[
        Layer(name="tower", part="encoder", products=(Product("patches", 1.0),)),
        Layer(name="decoder", part="backbone", products=(Product("tokens", 0.2),)),
    ],
    counts=counts,
    projector_side="encoder",
    part_bytes={"encoder": 1.0, "projector": 0.0, "backbone": 1.0},
)


@dataclass(frozen=True)
class Times:
    """One second for each FLOP and pass, and for each part that is updated."""

    update_s: float = 0.0

    def seconds(
        self, layer: Layer, counts: Counts, *, documents: Sequence[int] | None
    ) -> PassSeconds:
        (product,) = layer.products
        flops = product.flops * counts[Counts._fields.index(product.unit)]
        return PassSeconds(forward=flops, backward_input=flops, backward_weight=flops)

    def update_seconds(self, parts: Sequence[str]) -> float:
        return self.update_s * len(parts)

    def accumulate_seconds(self, parts: Sequence[str]) -> float:
        return 0.0


def steps(mode: Mode = "strict", *, model: SampledModel = MODEL, **changes: Any) -> SampledSteps:
    """Eight samples with equal costs: 1 FLOP for the image and 2 for the backbone."""
    given = {
        "global_batch": 8,
        "recompute": False,
        "trained": ["backbone"] if mode == "frozen" else ["encoder", "backbone"],
        "microbatch_tokens": 100,
        "item_tokens": 8,
        "parallel": ParallelConfig(),
        "logit_bytes": LOGIT_BYTES,
        **changes,
    }
    return SampledSteps(model, [Size(index) for index in range(8)], mode=mode, **given)


def seconds(
    found: SampledSteps, layout: RankLayout, *, reduce_bytes: float = 1e30, read_s: float = 0.0
) -> float:
    return step_seconds(found, layout, Times(), cores=2, reduce_bytes=reduce_bytes, read_s=read_s)


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
    mode: Mode, layout: RankLayout, expected: float
) -> None:
    assert seconds(steps(mode), layout) == pytest.approx(expected)


def test_images_whose_features_are_stored_are_neither_read_nor_encoded() -> None:
    frozen = steps("frozen")
    times = {"cores": 2, "reduce_bytes": 1e30, "source": "here"}
    plain = choose_on_cores(frozen, Times(), read_s=3, **times)
    cached = choose_on_cores(frozen, Times(), read_s=3, cache_hits=0.75, **times)
    # 8 s to encode, 48 in the backbone, 24 to read.
    assert (plain.step_s, cached.step_s) == ((8 + 48 + 24) / 2, (2 + 48 + 6) / 2)
    assert "from here with 75% of the features from flow.cache" in str(cached)


def test_an_encoder_that_encodes_again_takes_a_forward_pass_more() -> None:
    assert seconds(steps(recompute=True), RankLayout.decoupled(1, 1)) == 32 + 48


def test_a_projector_behind_the_cut_is_work_of_the_ranks_that_read() -> None:
    projector = Layer(name="projector", part="projector", products=(Product("patches", 4.0),))
    model = SampledModel(
        layers=[MODEL.layers[0], projector, MODEL.layers[1]],
        counts=counts,
        projector_side="backbone",
        part_bytes=MODEL.part_bytes,
    )
    frozen = steps("frozen", model=model, trained=["projector", "backbone"])
    assert seconds(frozen, RankLayout.decoupled(1, 1)) == 8 * 4 * 3 + 48
    assert seconds(frozen, RankLayout.colocated_on(1)) == 8 + 8 * 4 * 3 + 48


def test_ranks_beyond_the_cores_take_turns() -> None:
    alone, crowded = (seconds(steps(), RankLayout.colocated_on(ranks)) for ranks in (2, 4))
    assert crowded > alone


def test_samples_are_read_on_cores_that_are_idle() -> None:
    # 8 and 48 s of work. The core of the encoder has 40 s left, and reading takes 24 or 48.
    frozen, apart = steps("frozen"), RankLayout.decoupled(1, 1)
    assert seconds(frozen, apart, read_s=3) == 48
    assert seconds(frozen, apart, read_s=6) == (8 + 48 + 48) / 2
    assert seconds(frozen, RankLayout.colocated_on(2), read_s=3) == (8 + 48 + 24) / 2


def test_the_reduction_of_a_large_model_makes_decoupled_ranks_faster() -> None:
    large = SampledModel(
        layers=MODEL.layers,
        counts=counts,
        projector_side="encoder",
        part_bytes={"encoder": 100.0, "backbone": 400.0},
    )
    layouts = [RankLayout.colocated_on(2), RankLayout.decoupled(1, 1)]
    together, apart = (seconds(steps(model=large), each, reduce_bytes=1.0) for each in layouts)
    assert together == pytest.approx(36 + 500)
    assert apart == pytest.approx(72)


def test_optimizers_that_outweigh_the_passes_make_decoupled_ranks_faster() -> None:
    given = {"cores": 2, "reduce_bytes": 1e30, "read_s": 0.0, "source": "a test"}
    light = choose_on_cores(steps(), Times(), **given)  # type: ignore[arg-type]
    heavy = choose_on_cores(steps(), Times(update_s=1e3), **given)  # type: ignore[arg-type]
    assert (light.layout.ranks, light.step_s) == (RankLayout.colocated_on(2), 36)
    # Each rank updates one part.
    assert (heavy.layout.ranks, heavy.step_s) == (RankLayout.decoupled(1, 1), 72 + 1e3)
    assert heavy.next_best is not None and heavy.next_best[1] > heavy.step_s


def test_candidates_stay_within_the_ranks_and_divide_them_by_work() -> None:
    found = candidates(cores=8, max_ranks=12, encoder_share=0.25)
    assert all(len(each.labels) <= 12 for each in found)
    decoupled = {(each.encoder_ranks, each.backbone_ranks) for each in found if not each.colocated}
    assert decoupled == {(1, 7), (2, 6), (3, 5), (2, 10), (3, 9), (4, 8)}
    assert [str(each) for each in candidates(cores=8, max_ranks=1, encoder_share=0.25)] == [
        "colocated 1"
    ]
