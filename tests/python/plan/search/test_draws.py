"""Steps of plans for other samples, against prices, and the test of how many samples are enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
import pytest

from flowtrain.cost.layers import Counts, Layer
from flowtrain.cost.timing import PassSeconds
from flowtrain.cost.topology import Link, Topology
from flowtrain.plan.describe import ModelDescription
from flowtrain.plan.result import SampleTest
from flowtrain.plan.search import search
from flowtrain.plan.search.context import Context
from flowtrain.plan.search.draws import mean_step_s
from flowtrain.plan.search.interface import best_plan
from flowtrain.plan.search.loads import Loads
from flowtrain.plan.space import MODES, GpuPool, Rules, Space
from flowtrain.plan.work import Work
from flowtrain.workloads import Workload
from tests.planned import small_model, small_pool, small_work, two_encoders


@dataclass(frozen=True)
class Rate:
    """Each pass of each product takes its FLOPs at 1 TFLOP/s, times a factor for its part."""

    backbone: float = 1.0
    encoder: float = 1.0

    def seconds(
        self, layer: Layer, counts: Counts, *, tp: int = 1, cp: int = 1, ep: int = 1
    ) -> PassSeconds:
        flops = sum(p.flops * counts[Counts._fields.index(p.unit)] for p in layer.products)
        factor = self.backbone if layer.part == "backbone" else self.encoder
        each_s = factor * flops / (tp * cp) / 1e12
        return PassSeconds(forward=each_s, backward_input=each_s, backward_weight=each_s)


def pool(timing: Rate) -> GpuPool:
    """GPUs on which only products take time."""
    link = Link(latency_s=0.0, bytes_per_s=1e30)
    topology = Topology(devices_per_node=4, inside=link, between=link)
    return small_pool(4, topology=topology, memory_bytes_per_s=1e30, timing=timing)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("model", "work"),
    [(small_model(), small_work()), (two_encoders(), small_work(with_audio=True))],
    ids=["one encoder", "two encoders"],
)
@pytest.mark.parametrize("factors", [(1.0, 1.0), (1.02, 1.0), (1.0, 1.02)])
def test_steps_of_other_work_are_those_of_a_price(
    factors: tuple[float, float], model: ModelDescription, work: Work, mode: Any
) -> None:
    # One layout in each mode.
    space = Space(
        modes=(mode,), tp=(1,), cp=(1,), pp=(2,), sharding=("replicated",), microbatches=(4,)
    )

    def priced(rate: Rate) -> Any:
        return best_plan(Context(model, work, pool(rate), space, Rules()))

    before, after = priced(Rate()), priced(Rate(*factors))
    assert [s.end for s in before.cut.stages] == [s.end for s in after.cut.stages]
    backbone, encoders = factors
    scaled = numpy.array([backbone] + [encoders] * len(model.encoders))
    found = mean_step_s(before, Loads(before), scaled)
    assert found == pytest.approx(after.step_s, rel=1e-9)


def alternating(count: int, visual: int) -> Workload:
    """Samples of 400 tokens, of which every second one has an image."""
    return Workload(
        name="alternating",
        tokens=numpy.full(count, 400),
        visual_tokens=numpy.where(numpy.arange(count) % 2, visual, 0),
        cost=numpy.ones(count),
        encoder_cost=numpy.ones(count),
    )


def sample_test(count: int, visual: int) -> SampleTest:
    space = Space(modes=("disaggregated",), tp=(1,), cp=(1,), pp=(1,), sharding=("replicated",))
    work = Work(workload=alternating(count, visual), batch=32, item_tokens=600)
    found = search(small_model(), work, [pool(Rate())], space=space).sample_test
    assert found is not None
    return found


def test_samples_are_enough_if_no_draw_of_them_gives_the_modules_other_gpus() -> None:
    # With 300 tokens an image, 1 + 3 GPUs are about as good as 2 + 2.
    few, many, clear = sample_test(16, 300), sample_test(1024, 300), sample_test(16, 100)
    assert few.enough is None and few.regret > 0.01
    assert many.enough is not None and 16 < many.enough < 1024 and many.regret < 0.01
    assert clear.enough == 16
