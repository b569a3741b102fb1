"""Models with two encoders: a price computed by hand, and encoders without anything to encode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy
import pytest

from flowtrain.cost.communication import Mesh
from flowtrain.cost.layers import Counts, Layer
from flowtrain.cost.timing import PassSeconds
from flowtrain.cost.topology import Link, Topology
from flowtrain.plan.fixed import Fix, narrowed, only
from flowtrain.plan.nodes import Room
from flowtrain.plan.prices.costs import Shape
from flowtrain.plan.prices.encoder import EncoderPrice
from flowtrain.plan.result import NoPlanError, Plan, RankBytes, Seconds
from flowtrain.plan.search import search
from flowtrain.plan.search.encoders import Encoders
from flowtrain.plan.space import GpuPool, Space
from flowtrain.plan.work import Work
from flowtrain.workloads import Workload
from tests.planned import small_model, small_pool, small_work, two_encoders

TOKENS, VISUAL, AUDIO, BATCH, MICROBATCHES = 500, 300, 100, 8, 4
SPACE = Space(tp=(1,), cp=(1,), pp=(1,), sharding=("replicated",), microbatches=(MICROBATCHES,))


class _Rate:
    """Each pass of each product takes its FLOPs at 1 TFLOP/s."""

    def seconds(
        self, layer: Layer, counts: Counts, *, tp: int = 1, cp: int = 1, ep: int = 1
    ) -> PassSeconds:
        flops = sum(p.flops * counts[Counts._fields.index(p.unit)] for p in layer.products)
        each_s = flops / (tp * cp) / 1e12
        return PassSeconds(forward=each_s, backward_input=each_s, backward_weight=each_s)


def fast_pool(gpus: int) -> GpuPool:
    """GPUs on which only products take time."""
    link = Link(latency_s=0.0, bytes_per_s=1e30)
    return small_pool(
        gpus,
        topology=Topology(devices_per_node=4, inside=link, between=link),
        memory_bytes_per_s=1e30,
        memory_bytes=10**12,
        timing=_Rate(),
    )


def equal_work() -> Work:
    count = 16
    workload = Workload(
        name="equal",
        tokens=numpy.full(count, TOKENS),
        visual_tokens=numpy.full(count, VISUAL),
        cost=numpy.ones(count),
        encoder_cost=numpy.ones(count),
        audio_tokens=numpy.full(count, AUDIO),
        clips=numpy.full(count, 2),
    )
    return Work(workload=workload, batch=BATCH, item_tokens=600)


def best(mode: Any, gpus: int, *fixed: Fix) -> Plan:
    space = replace(SPACE, modes=(mode,), fixed=fixed)
    arguments: dict[str, Any] = {"space": space, "neighbours": False, "batches": 0}
    return search(two_encoders(), equal_work(), [fast_pool(gpus)], **arguments).best


def sample_s() -> tuple[float, float, float]:
    """Seconds of both passes of a sample: vision, audio, and the backbone.

    The patch embedding has no gradient of its input, so that its two passes take two thirds.
    """
    w, v, a = 256, 128, 64
    patches = VISUAL * 4 * 1000 * v
    tower = 3 * (VISUAL * 4 * 24 * v**2 + 16 * VISUAL**2 * 4 * v)
    vision = 2 * patches + 3 * (tower + VISUAL * 8 * v * w)
    audio = 3 * AUDIO * (2 * (2 * 24 * a**2 + 100 * 4 * a) + 2 * a * w)
    decoder = 6 * (TOKENS * 24 * w**2 + TOKENS**2 / 2 * 4 * w)
    head = (TOKENS - VISUAL - AUDIO) * 2 * w * 5000
    return vision / 1e12, audio / 1e12, 3 * (decoder + head) / 1e12


def test_steps_are_those_computed_by_hand() -> None:
    vision, audio, backbone = sample_s()
    ones = (Fix(module=name, field="dp", value=1) for name in ("vision", "audio", "backbone"))
    each = BATCH / MICROBATCHES
    apart = best("disaggregated", 3, *ones)
    assert [module.module for module in apart.modules] == ["vision", "audio", "backbone"]
    assert apart.gpus == 3
    # The vision tower has the longer passes, and audio fills beside it.
    fills = each * (max(vision, audio) + backbone)
    longest = each * max(vision, audio, backbone)
    assert apart.step_s == pytest.approx(fills + (MICROBATCHES - 1) * longest, rel=1e-9)
    for mode in ("colocated", "prefix"):
        whole = best(mode, 1)
        assert whole.step_s == pytest.approx(BATCH * (vision + audio + backbone), rel=1e-9)
    # One pass is 2 FLOPs where training counts 6; the patch embedding is counted in full.
    patches = VISUAL * 4 * 1000 * 128 / 1e12
    flops = BATCH * (vision + patches + audio + backbone) * 1e12
    assert apart.mfu == pytest.approx(flops / (apart.step_s * 3 * 1e13), rel=1e-9)


def test_the_longest_passes_count_if_they_are_of_different_encoders() -> None:
    def encoder(forward_s: float, backward_s: float) -> Encoders:
        price = EncoderPrice(
            shape=Shape(Mesh(), "replicated"),
            recompute=False,
            forward=Seconds(forward=forward_s),
            backward=Seconds(backward=backward_s),
            transfer_s=0.5,
            reduce_s=0.0,
            optimizer_s=1.0,
            fixed=RankBytes(),
            held=RankBytes(),
        )
        return Encoders.of([price], memory_bytes=1.0, in_flight=1)

    rooms = [Room(2, 4)]
    both = encoder(3.0, 4.0).beside(encoder(2.0, 6.0), rooms)
    times: dict[str, Any] = {"fill_s": 10.0, "longest_s": 1.0, "update_s": 0.0, "microbatches": 3}
    assert both.steps_s(rooms, [0], **times).tolist() == [3.5 + 10 + 6.5 + 2 * 8 + 1]


def test_modules_on_parts_of_nodes_fit_into_these() -> None:
    sizes = {"vision": 3, "audio": 3, "backbone": 2}
    space = Space(
        modes=("disaggregated",),
        tp=(1,),
        cp=(1,),
        pp=(1,),
        fixed=tuple(Fix(module=name, field="dp", value=dp) for name, dp in sizes.items()),
    )
    model, work = two_encoders(), small_work(with_audio=True)
    # Two nodes of four: each has one encoder, and one GPU left.
    with pytest.raises(NoPlanError):
        search(model, work, [small_pool(8)], space=space, batches=0)
    found = search(model, work, [small_pool(12)], space=space, batches=0)
    assert [module.layout.dp for module in found.best.modules] == [3, 3, 2]
    # The backbone has a whole node and a part of one, which the encoder shares.
    space = Space(modes=("disaggregated",), tp=(1, 2), cp=(1,), pp=(1,))
    found = search(small_model(), small_work(), [small_pool(8)], space=space, keep=300, batches=0)
    sizes = {tuple(module.layout.gpus for module in plan.modules) for plan in found.plans}
    assert {(2, 6), (1, 7)} <= sizes and small_pool(12).shares() == [1, 2, 3, 4, 8, 9, 10, 11, 12]


def test_encoders_on_the_same_ranks_take_memory_together() -> None:
    *encoders, backbone = best("colocated", 1).modules
    usable = int(0.9 * 10**12)
    # Nobody has working memory while another module runs, and the backbone has no activations.
    idle = [module.memory[0].total - module.memory[0].working for module in encoders]
    idle.append(backbone.memory[0].states)
    assert backbone.memory[0].working > 0
    for module, own in zip((*encoders, backbone), idle, strict=True):
        assert module.memory_bytes == pytest.approx(usable - (sum(idle) - own), abs=2)
    parameters = 2 * 12 * 64**2 + 64 * 256
    assert encoders[1].memory[0].weights == 2 * parameters
    # Two bytes for each of 256 values of a row, and as many for its gradient.
    assert encoders[1].memory[0].rows == pytest.approx(2 * 2 * 256 * 1.05 * AUDIO * BATCH)


def test_an_encoder_without_inputs_is_left_out_and_said_to_be() -> None:
    plan = search(two_encoders(), small_work(), [small_pool(4)], batches=0)
    alone = replace(small_model(), far_inputs=())
    found = search(alone, small_work(), [small_pool(4)], batches=0)
    assert plan.best.step_s == found.best.step_s
    assert "encoder audio" in {assumption.name for assumption in plan.assumptions}
    # FlowTrain does not train the model all the same.
    assert all("several encoders (vision, audio)" in each.not_run for each in plan.plans)
    with pytest.raises(ValueError, match="small: samples have audio tokens, and the model has no"):
        search(small_model(), small_work(with_audio=True), [small_pool(4)])


def test_each_encoder_has_sizes_of_its_own_and_a_plan_is_priced_again_alone() -> None:
    names = ["vision", "audio"]
    space = narrowed(Space(), ["mode=disaggregated", "audio.tp=2", "vision.dp=3"], encoders=names)
    report = search(two_encoders(), small_work(with_audio=True), [small_pool(12)], space=space)
    for plan in report.plans:
        vision, audio, _ = (module.layout for module in plan.modules)
        assert audio.tp == 2 and vision.dp == 3
        again = search(
            two_encoders(), small_work(with_audio=True), [small_pool(12)], space=only(plan), keep=1
        )
        assert again.best.step_s <= plan.step_s * (1 + 1e-12)
    with pytest.raises(ValueError, match=r"choose from mode, .*vision\.tp, .*audio\.tp"):
        narrowed(Space(), ["encoder.tp=2"], encoders=names)


def test_the_simulation_has_encoders_side_by_side() -> None:
    # With one microbatch, 1F1B waits as the formula says.
    space = replace(SPACE, modes=("disaggregated",), microbatches=(1,))
    (plan,) = search(two_encoders(), equal_work(), [fast_pool(3)], space=space).plans
    assert plan.simulated_s == pytest.approx(plan.step_s, rel=1e-9)
