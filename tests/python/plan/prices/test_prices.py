"""Times of modules and of their collectives, against values computed by hand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy
import pytest

from flowtrain.cost import Counts, Layer
from flowtrain.cost.communication import Mesh, gradients_s
from flowtrain.cost.timing import DataSheetTiming, PassSeconds
from flowtrain.cost.topology import Link, Topology
from flowtrain.plan.describe import ModelDescription
from flowtrain.plan.prices.chain import Chain
from flowtrain.plan.prices.costs import Shape
from flowtrain.plan.prices.network import Network
from flowtrain.plan.prices.pipeline import Pipeline
from flowtrain.plan.prices.tables import Tables
from flowtrain.plan.space import Rules
from tests.planned import small_model, small_pool, small_work
from tests.priced import PLENTY, ROW, SHARE, encoders, pipeline


def test_hybrid_shards_lie_side_by_side_and_copies_sum_their_shares() -> None:
    """HSDP: 2 copies, each over the 4 ranks of a node."""
    work, parameters = small_work(), sum(small_model().parameters)
    timing = DataSheetTiming(flops_per_s=1e8, memory_bytes_per_s=1e16, extrapolates=True)

    def priced(sharding: Any, shard_ranks: int | None) -> Pipeline:
        pool, model = small_pool(64, timing=timing), small_model()
        chain = Chain(Tables(model, work, timing), model.layers_of("model"))
        return Pipeline(
            chain,
            Shape(Mesh(dp=8), sharding, shard_ranks),
            [ROW],
            microbatches=[1],
            pool=pool,
            rules=Rules(),
            rows_bytes=[0.0],
        )

    whole, hybrid = priced("full", None), priced("full", 4)
    assert hybrid.costs.states == pytest.approx(2 * whole.costs.states)

    # 3 hops within a node, and 3 of 4 parts; then an exchange with the rank of the other node.
    def shared_s(size: float) -> float:
        return 2.4 * 3 * 1e-6 + 3 / 4 * size / 1e10

    def summed_s(size: float) -> float:
        return 2 * (2.4 * 5e-6 + size / 4 / 2 / 2e9)

    cut = priced("optimizer", 4).cut(PLENTY)
    assert cut is not None
    alone_s = shared_s(4 * parameters) + summed_s(4 * parameters) + shared_s(2 * parameters)
    # All of it is hidden, and a share is exposed.
    assert cut.reduce_s == pytest.approx(SHARE * alone_s)
    head = hybrid.chain.tables.head
    size = small_model().parameters[-1]
    # It is no block, and stays gathered from the forward pass.
    backward_s = shared_s(4 * size) + summed_s(4 * size)
    assert hybrid.costs.backward[0, 5, head] == pytest.approx(SHARE * backward_s)


def test_features_in_a_cache_take_no_time_in_front_of_the_cut_alone() -> None:
    for trained in (("projector", "backbone"), ("backbone",)):
        work = small_work(trained=trained)
        all_s, some_s = (
            Tables(small_model(), given, small_pool(8).timing).row_passes(ROW, Mesh())
            for given in (work, replace(work, cache_hits=0.75))
        )
        tables = Tables(small_model(), work, small_pool(8).timing)
        in_front = tables.vision & ~tables.gradient
        assert in_front.any() and not in_front.all()
        assert some_s == pytest.approx(numpy.where(in_front, 0.25, 1.0) * all_s)
    with pytest.raises(ValueError, match=r"cache_hits=0.5 with a trained encoder"):
        small_work(cache_hits=0.5)


def with_experts(model: ModelDescription) -> ModelDescription:
    """The model with experts in its decoder, which have half of its parameters."""
    experts = tuple(
        size // 2 if layer.name == "decoder" else 0
        for layer, size in zip(model.layers, model.parameters, strict=True)
    )
    layers = tuple(
        replace(layer, products=tuple(replace(p, experts_per_chosen=4) for p in layer.products))
        if layer.name == "decoder"
        else layer
        for layer in model.layers
    )
    return replace(model, layers=layers, experts=experts, num_experts=8, chosen_experts=2)


def test_experts_beside_adapters_do_not_train() -> None:
    model = with_experts(small_model())
    adapted = replace(
        model, parameters=tuple(size + 10 for size in model.parameters), unused=model.parameters
    )
    tables = pipeline(Mesh(dp=4), model=adapted).chain.tables
    assert tables.sparse.any() and not tables.trained_experts.any()
    assert tables.trained.tolist() == [10] * len(tables.first)


def test_experts_are_divided_over_expert_parallelism_too() -> None:
    model = small_model()
    sparse = with_experts(model)
    one = pipeline(Mesh(dp=4), model=sparse)
    found = pipeline(Mesh(dp=4, ep=4), model=sparse)
    decoder = one.chain.tables.sparse
    ratio = found.costs.states[0][decoder] / one.costs.states[0][decoder]
    assert ratio == pytest.approx((1 + 1 / 4) / 2)
    assert found.costs.forward[0, 4][decoder].min() > 0 == one.costs.forward[0, 4].max()
    # Two ranks of tensor parallelism send half of the tokens each, to two experts: a quarter of the
    # rows to a rank of the node, and to each of two others. Then each of both gathers all rows, two
    # for each token in place of one.
    shared = pipeline(Mesh(tp=2, dp=4, ep=4), model=sparse).costs.forward[0, 4][decoder]
    row_bytes = 2 * ROW.tokens * model.width
    quarter = 2 * row_bytes / 2 / 4
    sent_s = 2 * ((1e-6 + quarter / 1e10) + 2 * (5e-6 + quarter / 2e9))
    assert shared == pytest.approx(sent_s + 2 * (2 - 1) * row_bytes / 2 / 1e10)
    # Each expert has the rows of four ranks, and so is as efficient as a dense product.
    dense = pipeline(Mesh(dp=4)).costs.forward[0, 0]
    assert found.costs.forward[0, 0] == pytest.approx(dense)
    assert one.costs.forward[0, 0][decoder] > 1.1 * dense[decoder]


def test_tensor_parallelism_gathers_or_scatters_around_every_layer_that_it_divides() -> None:
    model, work = small_model(), small_work()
    found = pipeline(Mesh(tp=2, cp=2, dp=1))

    def gather_s(values: float) -> float:
        # One step of a half, in bfloat16.
        return 2.4 * 1e-6 + 2 * values / 2 / 1e10

    (encoded,) = ROW.encoded
    # Each token of the encoder is made of four of the tower. Ranks of context parallelism have half
    # of the text each, and all images.
    tower, rows = gather_s(4 * encoded * 128), gather_s(encoded * model.width)
    text = gather_s(ROW.tokens / 2 * model.width)
    targets = ROW.tokens / 2 * work.share.targets / work.share.tokens
    # Maxima, sums and logits of targets in float32, summed by a ring of two.
    loss = 3 * 2 * (2.4 * 1e-6 + 4 * targets / 2 / 1e10)
    head = gather_s(targets * model.width)
    expected = {
        "patches": tower,
        "tower": 4 * tower,
        "projector": tower + rows,
        "embedding": text,
        "decoder": 4 * text,
        "head": head + loss,
    }
    forward, backward = found.costs.forward[0, 2], found.costs.backward[0, 2]
    names = [model.layers[first].name for first in found.chain.tables.first]
    assert dict(zip(names, forward.tolist(), strict=True)) == pytest.approx(expected)
    expected["head"] = head
    assert dict(zip(names, backward.tolist(), strict=True)) == pytest.approx(expected)
    assert not pipeline(Mesh(cp=2, dp=2)).costs.forward[0, 2].any()


def test_context_parallelism_does_not_share_out_layers_in_front_of_the_backbone() -> None:
    one, two = pipeline(Mesh(cp=1, dp=2)), pipeline(Mesh(cp=2, dp=1))
    vision = one.chain.tables.vision
    assert (two.costs.forward[0, 0][vision] == one.costs.forward[0, 0][vision]).all()
    assert (two.costs.kept[0, 0][vision] == one.costs.kept[0, 0][vision]).all()
    decoder = one.chain.tables.block & ~vision
    # Half of the tokens on each rank, at a lower efficiency.
    ratio = two.costs.forward[0, 0][decoder] / one.costs.forward[0, 0][decoder]
    assert 0.5 < ratio[0] < 0.6
    assert two.costs.kept[0, 0][decoder] == pytest.approx(one.costs.kept[0, 0][decoder] / 2)


@dataclass(frozen=True)
class Equal:
    """Times that all layers have."""

    attention: float

    def seconds(
        self, layer: Layer, counts: Counts, *, tp: int = 1, cp: int = 1, ep: int = 1
    ) -> PassSeconds:
        return PassSeconds(
            forward=1.0, backward_input=1.0, backward_weight=1.0, attention=self.attention
        )


@pytest.mark.parametrize("attention", [0.0, 1e-4, 1.0])
def test_the_ring_of_context_parallelism_hides_behind_the_time_of_attention(
    attention: float,
) -> None:
    found = pipeline(Mesh(cp=2), timing=Equal(attention))
    # Keys and values of half of the row to the other rank, at 10 GB/s and 1 us.
    ring_s = 1e-6 + 2 * 2 * ROW.tokens / 2 * small_model().kv_width / 1e10
    tables = found.chain.tables
    decoder = tables.block & ~tables.vision
    shown_s = ring_s - SHARE * min(ring_s, attention)
    assert found.costs.forward[0, 3][decoder] == pytest.approx(shown_s)
    assert found.costs.backward[0, 3][decoder] == pytest.approx(2 * shown_s)


@dataclass
class Noted:
    """Times of no length, which note what they are asked for."""

    asked: dict[str, tuple[Counts, int, int]] = field(default_factory=dict)

    def seconds(
        self, layer: Layer, counts: Counts, *, tp: int = 1, cp: int = 1, ep: int = 1
    ) -> PassSeconds:
        self.asked[layer.name] = (counts, tp, cp)
        return PassSeconds(forward=0.0, backward_input=0.0, backward_weight=0.0)


def test_ranks_that_share_tokens_fill_up_each_document_to_equal_parts() -> None:
    noted, work = Noted(), small_work()
    tables = Tables(small_model(), work, noted)
    lengths = [work.share.tokens] * 10
    tables.text_passes(sum(lengths), Mesh(tp=2, cp=4))
    counts, tp, cp = noted.asked["decoder"]
    assert (tp, cp) == (2, 4)
    # A first and a last part for each of 4 ranks: of all remainders from 0 to 7, 3.5 are missing
    # in the mean.
    missing = sum(-remainder % 8 for remainder in range(8)) / 8
    assert counts.tokens == pytest.approx(sum(lengths) + 10 * missing)
    assert counts.pairs == pytest.approx(10 * work.share.squares / 2)


def test_gradients_are_summed_once_a_step_and_partly_hidden() -> None:
    mesh = Mesh(dp=8)
    found = pipeline(mesh)
    cut = found.cut(PLENTY)
    assert cut is not None
    pool = small_pool(64)
    whole_s = gradients_s(
        sum(small_model().parameters),
        mesh.replicas,
        Network(pool.topology, 8).around(mesh.replicas),
        sharded=False,
    )
    hidden_s = SHARE * min(cut.backward_s[0], whole_s)
    assert cut.reduce_s == pytest.approx(whole_s - hidden_s)
    alone = pipeline(Mesh()).cut(PLENTY)
    assert alone is not None and alone.reduce_s == 0 and alone.optimizer_s > 0


@pytest.mark.parametrize(("sharding", "owners"), [("replicated", 1), ("optimizer", 8), ("full", 8)])
def test_replicas_step_the_parameters_of_their_share(sharding: str, owners: int) -> None:
    cut = pipeline(Mesh(dp=8), sharding=sharding).cut(PLENTY)
    assert cut is not None
    # Of a parameter: gradient, master weight and two moments read, the last three and the weight
    # written, and the weight read.
    moved = (4 + 4 + 8) + (4 + 8 + 2) + 2
    step_s = moved * sum(small_model().parameters) / owners / small_pool(64).memory_bytes_per_s
    assert cut.optimizer_s == pytest.approx(step_s)


@pytest.mark.parametrize("flops_per_s", [1e8, 1e16])
def test_sharded_optimizers_and_full_sharding_hide_their_collectives_by_one_rule(
    flops_per_s: float,
) -> None:
    work, parameters = small_work(), small_model().parameters
    timing = DataSheetTiming(flops_per_s=flops_per_s, memory_bytes_per_s=1e16, extrapolates=True)

    def alone_s(size: int) -> Any:
        # On 2 nodes of 4: 6 hops inside and 1 between, 7 parts of an eighth by 4 adapters.
        return 2.4 * (6 * 1e-6 + 5e-6) + 7 / 8 * size / 8e9

    def shown_s(collective_s: Any, beside_s: Any) -> Any:
        return collective_s - SHARE * numpy.minimum(collective_s, beside_s)

    options: dict[str, Any] = {"timing": timing, "microbatches": 1, "work": work}
    optimizer = pipeline(Mesh(dp=8), sharding="optimizer", **options).cut(PLENTY)
    assert optimizer is not None
    # Once a step: gradients beside the backward pass, weights beside the next forward pass.
    assert optimizer.reduce_s == pytest.approx(
        shown_s(alone_s(4 * sum(parameters)), optimizer.backward_s[0])
        + shown_s(alone_s(2 * sum(parameters)), optimizer.forward_s[0])
    )
    # In each microbatch: weights beside the forward pass of a layer, and beside its backward pass
    # gradients, and weights again if it is a block: the root of FSDP2 stays gathered.
    full = pipeline(Mesh(dp=8), sharding="full", **options)
    held = numpy.array(parameters)[full.chain.tables.first]
    gather_s, scatter_s = alone_s(2 * held), alone_s(4 * held)
    forward_s, backward_s = full.costs.forward[0], full.costs.backward[0]
    assert forward_s[5] == pytest.approx(shown_s(gather_s, forward_s[0]))
    again_s = numpy.where(full.chain.tables.block, gather_s, 0.0)
    assert backward_s[5] == pytest.approx(shown_s(again_s + scatter_s, backward_s[1]))
    assert full.cut(PLENTY).reduce_s == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(("sharding", "owners"), [("optimizer", 1), ("full", 8)])
def test_gradients_of_later_microbatches_are_added_in_the_dtype_of_the_sum(
    sharding: str, owners: int
) -> None:
    one, four = (
        pipeline(Mesh(dp=8), sharding=sharding, microbatches=count).cut(PLENTY) for count in (1, 4)
    )
    assert one is not None and four is not None
    # Two float32 gradients are read and one written, three times in four microbatches.
    parameters = sum(small_model().parameters) / owners
    added_s = 3 * (4 + 4 + 4) * parameters / small_pool(64).memory_bytes_per_s
    assert 4 * (four.backward_s[0] - one.backward_s[0]) == pytest.approx(added_s)


def test_a_tied_head_is_held_on_both_ends_of_a_pipeline() -> None:
    model = small_model()
    size = model.parameters[-1]
    tied = replace(model, parameters=(*model.parameters[:-1], 0), tied_parameters=size)
    for stages, copies in ((1, 0), (2, 1)):
        found = pipeline(Mesh(pp=stages), model=tied)
        cut = found.cut(PLENTY)
        assert cut is not None
        weights = sum(rank.weights for rank in found.memory(cut.stages))
        assert weights == pytest.approx(2 * (sum(tied.parameters) + copies * size))
    frozen = pipeline(Mesh(pp=2), model=tied, work=small_work(trained=("projector",)))
    cut = frozen.cut(PLENTY)
    assert cut is not None
    assert frozen.memory(cut.stages)[-1].moments == 0 == cut.reduce_s


@pytest.mark.parametrize("sharding", ["replicated", "optimizer"])
def test_a_tied_head_costs_what_another_one_does_and_a_sum_with_the_embedding(
    sharding: str,
) -> None:
    model = small_model()
    size = model.parameters[-1]
    tied = replace(model, parameters=(*model.parameters[:-1], 0), tied_parameters=size)
    mesh, cuts = Mesh(tp=2, dp=2, pp=2), []
    for each in (model, tied):
        found = pipeline(mesh, model=each, sharding=sharding)
        cut = found.cut(PLENTY)
        assert cut is not None
        cuts.append((cut, found.memory(cut.stages)))
    (apart, apart_bytes), (together, together_bytes) = cuts
    assert together_bytes == apart_bytes
    assert together.stage_s == apart.stage_s and together.optimizer_s == apart.optimizer_s
    # Half of the float32 gradients to the node of the other stage, as long as as many come back.
    assert together.reduce_s - apart.reduce_s == pytest.approx(5e-6 + 4 * size / 2 / 2e9)


def test_a_rank_of_an_encoder_gathers_the_layers_of_the_encoder_alone() -> None:
    model = small_model()
    full, replicated = (
        encoders(Shape(Mesh(dp=4), sharding), small_work()) for sharding in ("full", "replicated")
    )
    own = [(model.layers[n], model.parameters[n]) for n in model.layers_of("encoder")]
    block = max(size for layer, size in own if layer.takes)
    others = sum(size for layer, size in own if not layer.takes)
    for gathering, holding in zip(full, replicated, strict=True):
        # Layers that are no blocks are gathered as one, and stay so until their gradients are sent.
        assert gathering.fixed.weights == 2 * others
        # Two gathered blocks, and the gradient of one in bfloat16, and in float32 to be scattered.
        more = gathering.fixed.working - holding.fixed.working
        assert more == 2 * others + (2 * 2 + 2 + 4) * block


def test_an_encoder_that_encodes_again_gathers_its_root_once_for_each_item() -> None:
    # Computing hides nothing, and no link has a latency: seconds are bytes.
    pool: dict[str, Any] = {
        "timing": DataSheetTiming(flops_per_s=1e30, memory_bytes_per_s=1e30, extrapolates=True),
        "topology": Topology(
            devices_per_node=4,
            inside=Link(latency_s=0.0, bytes_per_s=1.0),
            between=Link(latency_s=0.0, bytes_per_s=1.0),
        ),
    }
    model, items = small_model(), 2
    keeps, again = encoders(Shape(Mesh(dp=4), "full"), small_work(), items * 600.0, **pool)
    own = [(model.layers[n], model.parameters[n]) for n in model.layers_of("encoder")]
    blocks = sum(size for layer, size in own if layer.takes)
    root = sum(size for layer, size in own if not layer.takes)
    part = items * 3 / 4
    assert keeps.forward.shards == pytest.approx(part * 2 * (blocks + root))
    assert keeps.backward.shards == pytest.approx(part * (2 * blocks + 4 * (blocks + root)))
    assert again.backward.recompute == pytest.approx(part * 2 * blocks)
    assert again.backward.shards == keeps.backward.shards


def test_every_rank_of_an_encoder_sends_its_part_of_the_rows() -> None:
    work, (encoder,) = small_work(), small_model().encoders
    num_bytes = 2 * encoder.row_width * 1000
    one_node = replace(small_pool(1).topology, devices_per_node=64)
    for tp in (1, 2):
        shape = Shape(Mesh(tp=tp, dp=2), "replicated")
        # It holds them, and their gradients, with room of 5 %.
        for price in encoders(shape, work):
            assert price.held.rows == pytest.approx(2 * 1.05 * num_bytes / tp)
        # At the rate of an adapter for each rank, or of the link inside if there is one node.
        over_nodes, in_a_node = (
            encoders(shape, work, **pools)[0].transfer_s for pools in ({}, {"topology": one_node})
        )
        assert over_nodes == pytest.approx(5e-6 + num_bytes / tp / 2e9)
        assert in_a_node == pytest.approx(1e-6 + num_bytes / tp / 1e10)


@pytest.mark.parametrize("trained", [("projector", "backbone"), ("backbone",)])
def test_ranks_of_the_first_stage_receive_the_rows_of_all(trained: tuple[str, ...]) -> None:
    model, work, pool = small_model(), small_work(trained=trained), small_pool(64)
    chain = Chain(Tables(model, work, pool.timing), model.layers_of("backbone"))
    cuts = []
    for rows_bytes in (0.0, 1.0):
        found = Pipeline(
            chain,
            Shape(Mesh(tp=2, dp=4, pp=2), "replicated"),
            [ROW],
            microbatches=[4],
            pool=pool,
            rules=Rules(),
            rows_bytes=[rows_bytes],
        ).cut(PLENTY)
        assert found is not None
        cuts.append(found)
    none, some = cuts
    assert none.stages == some.stages
    # If all 16 ranks send a part of the rows each, the 8 of the first stage receive two each. That
    # of sending is in the price of the encoder.
    rows_s = 5e-6 + 2 * model.encoders[0].row_width * ROW.encoded[0] / 2 / 2e9
    assert some.forward_s[0] - none.forward_s[0] == pytest.approx(rows_s / 2)
    returned_s = rows_s / 2 if "projector" in trained else 0.0
    assert some.backward_s[0] - none.backward_s[0] == pytest.approx(returned_s)
    assert some.stage_s[1] == none.stage_s[1]


def test_a_step_is_no_shorter_than_the_microbatch_of_its_heaviest_sample() -> None:
    work = small_work()
    tokens = numpy.append(work.workload.tokens, 40_000)
    longer = replace(
        work.workload,
        tokens=tokens,
        visual_tokens=numpy.append(work.workload.visual_tokens, 0),
        cost=numpy.ones(65),
        encoder_cost=numpy.ones(65),
    )
    # One of 65 samples: about 4 of 10 batches of 32 have it.
    heavy = replace(work, workload=longer)

    def extra_s(**options: Any) -> float:
        found = pipeline(work=heavy, **options).cut(PLENTY)
        assert found is not None
        return found.heaviest_s / found.longest_s

    share = pipeline(Mesh(), work=heavy).chain.heaviest_share
    assert 0.3 < share < 0.9
    # A replica on its own has other microbatches with less, as long as they last.
    assert extra_s(mesh=Mesh()) == 0
    assert extra_s(mesh=Mesh(dp=8)) == pytest.approx(4 * (8 * share - 1))
    for options in ({"mesh": Mesh(dp=8), "sharding": "full"}, {"mesh": Mesh(dp=8, pp=2)}):
        assert extra_s(**options) == pytest.approx(4 * 8 * share - 1)
