"""Times and memory of modules against the cost model, and against values computed by hand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy
import pytest

from flowtrain.cost import Counts, Layer, layer_bytes, state_bytes
from flowtrain.cost.communication import Mesh, gradients_s
from flowtrain.cost.layers import PARTS
from flowtrain.cost.timing import DataSheetTiming, PassSeconds
from flowtrain.plan.describe import ModelDescription
from flowtrain.plan.partition import Level
from flowtrain.plan.prices.chain import Chain
from flowtrain.plan.prices.costs import Shape
from flowtrain.plan.prices.encoder import Chunks, EncoderPrice, encoder_prices
from flowtrain.plan.prices.network import Network
from flowtrain.plan.prices.pipeline import Pipeline
from flowtrain.plan.prices.row import Row
from flowtrain.plan.prices.tables import Tables
from flowtrain.plan.result import StageLayout
from flowtrain.plan.space import Rules
from flowtrain.plan.work import Work
from tests.planned import small_model, small_pool, small_work

ROW = Row(2000.0, (900.0,), 3000.0, (1200.0,), 1000.0)
PLENTY = 10**12
SHARE = 0.5
"""Of the time in which computation hides a collective, what is exposed, and what is not."""


def pipeline(
    mesh: Mesh,
    *,
    model: ModelDescription | None = None,
    work: Work | None = None,
    module: str = "model",
    sharding: Any = "replicated",
    microbatches: int = 4,
    levels: tuple[Level, ...] = ("none", "full"),
    **pool: Any,
) -> Pipeline:
    model, work = model or small_model(), work or small_work()
    gpus = small_pool(64, **pool)
    chain = Chain(Tables(model, work, gpus.timing), model.layers_of(module))
    return Pipeline(
        chain,
        Shape(mesh, sharding),
        [ROW],
        microbatches=[microbatches],
        pool=gpus,
        rules=Rules(),
        rows_bytes=[0.0],
        levels=levels,
    )


def encoders(
    shape: Shape,
    work: Work,
    tokens: float = 1000.0,
    *,
    chunks: Chunks | None = None,
    **pools: Any,
) -> list[EncoderPrice]:
    pool, model = small_pool(64, **pools), small_model()
    chain = Chain(Tables(model, work, pool.timing), model.layers_of("encoder"))
    return encoder_prices(
        chain,
        shape,
        encoder=0,
        tokens=tokens,
        groups=1,
        pool=pool,
        rules=Rules(),
        chunks=chunks,
    )


def test_one_rank_holds_what_the_cost_model_says() -> None:
    model, work = small_model(), small_work()
    (rank,) = pipeline(Mesh()).memory(pipeline(Mesh()).cut(PLENTY).stages)  # type: ignore[union-attr]
    parameters = sum(model.parameters)
    states = state_bytes(parameters, parameters, work.optim, itemsize=2)
    assert (rank.weights, rank.masters) == (states.weights, states.masters)
    assert (rank.gradients, rank.moments) == (states.gradients, states.moments)
    (visual,) = ROW.most_encoded
    full = Counts(
        patches=4 * visual,
        vision_tokens=4 * visual,
        projected=visual,
        tokens=ROW.most_tokens,
        targets=ROW.most_targets,
    )
    kept = layer_bytes(model.layers, full, work.trained, itemsize=2)
    assert rank.activations == pytest.approx(sum(layer.kept for layer in kept))
    # Two gradients of all logits in float32, beside the kept logarithms of probabilities.
    assert rank.working == pytest.approx(2 * 4 * ROW.most_targets * model.vocabulary)


@pytest.mark.parametrize("trained", [PARTS, ("encoder",)], ids=["all", "frozen head"])
def test_a_head_in_chunks_holds_three_times_the_limit_and_runs_forward_twice(
    trained: tuple[str, ...],
) -> None:
    model, work = small_model(), replace(small_work(), trained=trained)
    logits = int(4 * ROW.most_targets * model.vocabulary)
    counts = Counts(targets=ROW.most_targets)
    whole, chunks = (
        pipeline(Mesh(), work=replace(work, logit_bytes=limit)) for limit in (logits, logits // 4)
    )
    ranks, cuts = [], []
    for each in (whole, chunks):
        cut = each.cut(PLENTY)
        assert cut is not None
        ranks.append(each.memory(cut.stages)[0])
        cuts.append(cut)
    head = model.layers[-1]
    kept = [
        layer_bytes([head], counts, trained, itemsize=2, logit_bytes=limit)[0].kept
        for limit in (None, logits // 4)
    ]
    assert kept[0] - kept[1] == pytest.approx(logits - 2 * 1000 * model.width * (trained != PARTS))
    assert ranks[0].activations - ranks[1].activations == pytest.approx(kept[0] - kept[1])
    assert (ranks[0].working, ranks[1].working) == (2 * logits, 3 * (logits // 4))
    again = cuts[1].backward_s[0] - cuts[0].backward_s[0]
    assert again == pytest.approx(whole.costs.forward[0].sum(0)[whole.chain.tables.head])


@pytest.mark.parametrize("level", ["selective", "full"])
def test_as_few_blocks_as_fit_are_computed_again(level: Level) -> None:
    model, work = small_model(), small_work()
    plain = pipeline(Mesh(), levels=("none", level))
    tables, (visual,) = plain.chain.tables, ROW.most_encoded
    counts = Counts(
        patches=4 * visual,
        vision_tokens=4 * visual,
        projected=visual,
        tokens=ROW.most_tokens,
        targets=ROW.most_targets,
    )
    blocks = [number for number, layer in enumerate(model.layers) if layer.takes]
    forward = plain.costs.forward[0].sum(0)
    attention = tables.row_passes(ROW, Mesh())[2] * (level == "selective")
    whole = plain.cut(PLENTY)
    assert whole is not None and whole.stages[0].recompute == "none"
    everything = layer_bytes(model.layers, counts, work.trained, itemsize=2)
    sizes, again_s = [], 0.0
    for n in range(len(blocks) + 1):
        levels: list[Level] = [
            level if x in blocks[:n] else "none" for x in range(len(model.layers))
        ]
        found = layer_bytes(model.layers, counts, work.trained, itemsize=2, levels=levels)
        stage = StageLayout(first=0, end=len(levels), recompute=level, recompute_layers=n)
        (rank,) = plain.memory((stage,))
        assert rank.activations == pytest.approx(sum(layer.kept for layer in found))
        # One block at a time has all of it; and the gradients of the logits.
        spared = max(a.kept - b.kept for a, b in zip(everything, found, strict=True))
        assert rank.working == pytest.approx(spared + 8 * ROW.most_targets * model.vocabulary)
        sizes.append(rank.total)
        cut = plain.cut(int(rank.total) + 1)
        assert cut is not None
        if n > 0 and rank.total < sizes[n - 1]:
            some = n if n < len(blocks) else None
            assert (cut.stages[0].recompute, cut.stages[0].recompute_layers) == (level, some)
            assert cut.backward_s[0] - whole.backward_s[0] == pytest.approx(again_s)
        if n < len(blocks):
            kind = tables.kind[blocks[n]]
            again_s += forward[kind] - attention[kind]
    assert plain.cut(int(min(sizes)) - 1) is None
    always = pipeline(Mesh(), levels=(level,)).cut(PLENTY)
    assert always is not None
    assert (always.stages[0].recompute, always.stages[0].recompute_layers) == (level, None)


@pytest.mark.parametrize(
    ("mesh", "sharding", "parts"),
    [
        (Mesh(tp=2, dp=3), "replicated", (2, 2, 2, 2)),
        (Mesh(tp=2, cp=2, dp=2), "optimizer", (2, 8, 2, 8)),
        (Mesh(cp=2, dp=2), "full", (4, 4, 4, 4)),
    ],
)
def test_states_are_divided_over_the_ranks_that_share_them(
    mesh: Mesh, sharding: str, parts: tuple[int, ...]
) -> None:
    whole, divided = (
        found.costs.states.sum(1) for found in (pipeline(Mesh()), pipeline(mesh, sharding=sharding))
    )
    assert whole / divided == pytest.approx(parts)


@pytest.mark.parametrize("trained", [("encoder", "projector", "backbone"), ("encoder",)])
def test_ranks_beyond_the_heads_of_keys_and_values_hold_them_too(trained: tuple[str, ...]) -> None:
    model, work = small_model(blocks=6), small_work(trained=trained)
    width, keys = model.width, 2 * model.kv_width

    def with_keys(layer: Layer) -> Layer:
        if layer.name != "decoder":
            return layer
        first, *others = layer.products
        flops = 2.0 * width * keys
        return replace(layer, products=(replace(first, kv_flops=flops, kv_heads=1), *others))

    one_head = replace(model, layers=tuple(map(with_keys, model.layers)), kv_heads=1)
    some, all_of = (
        pipeline(Mesh(tp=4, cp=2), model=each, work=work).memory(
            (StageLayout(first=0, end=len(model.layers), recompute="none"),)
        )[0]
        for each in (model, one_head)
    )
    # All of them, in place of a quarter, in each of 6 layers; bfloat16.
    more = 6 * 3 / 4 * keys
    assert all_of.weights - some.weights == pytest.approx(2 * width * more)
    in_float32 = 4 * width * more if "backbone" in trained else 0.0
    assert all_of.gradients - some.gradients == pytest.approx(in_float32)
    assert all_of.activations - some.activations == pytest.approx(2 * ROW.most_tokens / 2 * more)


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
    assert hybrid.costs.states / whole.costs.states == pytest.approx(numpy.full((4, 6), 2.0))

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
    backward_s = shared_s(2 * size) + shared_s(4 * size) + summed_s(4 * size)
    assert hybrid.costs.backward[0, 5, head] == pytest.approx(SHARE * backward_s)


def test_experts_are_divided_over_expert_parallelism_too() -> None:
    model = small_model()
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
    sparse = replace(model, layers=layers, experts=experts, num_experts=8, chosen_experts=2)
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


def test_frozen_parts_have_no_backward_pass_and_keep_nothing() -> None:
    frozen = small_work(trained=("backbone",))
    (price,) = encoders(Shape(Mesh(dp=2), "replicated"), frozen)
    assert price.backward.total == 0 and price.update_s == 0 and not price.has_backward
    assert price.held.activations == 0 and price.fixed.gradients == 0
    trained, again = encoders(Shape(Mesh(dp=2), "replicated"), small_work())
    assert trained.forward == price.forward
    assert trained.held.activations > 0 == again.held.activations
    assert again.both_s == pytest.approx(trained.both_s + trained.forward.total)
    # Gradients pass through a frozen backbone to the projector in front of it.
    passes = pipeline(Mesh(), work=small_work(trained=("projector",)), module="backbone")
    cut, all_train = passes.cut(PLENTY), pipeline(Mesh(), module="backbone").cut(PLENTY)
    assert cut is not None and all_train is not None
    assert 0 < cut.backward_s[0] < all_train.backward_s[0] and cut.update_s == 0


def test_by_chunks_an_encoder_keeps_what_one_needs_and_encodes_nothing_again() -> None:
    work, shape = small_work(), Shape(Mesh(dp=2), "replicated")
    # The same items of 600 tokens, 8 of the step or 2 of each of 4 chunks.
    whole, again = encoders(shape, work, 4800.0)
    price, *less = encoders(shape, work, 4800.0, chunks=Chunks(4, 1260.0, meets=False))
    assert price.once_s == pytest.approx(whole.once_s) and whole.once_s < again.once_s
    # The whole has room of 5 % for ranks that have more than the mean.
    for kind in ("activations", "rows"):
        one, all_of = getattr(price.held, kind), getattr(whole.held, kind)
        assert one / all_of == pytest.approx(1260 / (1.05 * 4800))
    assert price.fixed.states == whole.fixed.states
    # The first of the 3 blocks may be computed again, and frees as much as each of them.
    assert [each.again for each in less] == [1, 2, 3]
    freed = price.held.activations - less[0].held.activations
    # All that the block keeps, but for its input; four tokens of the tower for each, in bfloat16.
    assert freed == pytest.approx(2 * (20 - 1) * 128 * 4 * 1260)
    assert price.held.activations - less[2].held.activations == pytest.approx(3 * freed)
    assert less[2].backward.recompute == pytest.approx(3 * less[0].backward.recompute)
    assert 0 < less[2].backward.recompute < price.forward.forward
    # Shorter items are less efficient.
    short, *_ = encoders(shape, work, 4800.0, chunks=Chunks(32, 600.0, meets=False))
    assert price.forward.forward < short.forward.forward < 2 * price.forward.forward
    # Ranks that meet in each chunk wait for the rank with its largest image.
    waits, *_ = encoders(shape, work, 4800.0, chunks=Chunks(32, 600.0, meets=True))
    assert 32 * work.largest_input_of("vision", 32) > 1.3 * 4800
    assert waits.forward.forward > 1.05 * short.forward.forward


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
    # In each microbatch: weights beside the forward pass of a layer, both beside its backward pass.
    full = pipeline(Mesh(dp=8), sharding="full", **options)
    held = numpy.array(parameters)[full.chain.tables.first]
    gather_s, scatter_s = alone_s(2 * held), alone_s(4 * held)
    forward_s, backward_s = full.costs.forward[0], full.costs.backward[0]
    assert forward_s[5] == pytest.approx(shown_s(gather_s, forward_s[0]))
    assert backward_s[5] == pytest.approx(shown_s(gather_s + scatter_s, backward_s[1]))
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
    largest = max(model.parameters[number] for number in model.layers_of("encoder"))
    assert largest < max(model.parameters)
    for gathering, holding in zip(full, replicated, strict=True):
        # Two gathered layers, and the gradient of one in bfloat16, and in float32 to be scattered.
        more = gathering.fixed.working - holding.fixed.working
        assert more == (2 * 2 + 2 + 4) * largest


def test_every_rank_of_an_encoder_sends_its_part_of_the_rows() -> None:
    work, (encoder,) = small_work(), small_model().encoders
    num_bytes = 2 * encoder.row_width * 1000
    inside = small_pool(1).topology.inside
    for tp in (1, 2):
        shape = Shape(Mesh(tp=tp, dp=2), "replicated")
        # At the rate of an adapter for each rank, or of the link inside if there is one node.
        over_nodes, in_a_node = (
            encoders(shape, work, **pools)[0].transfer_s
            for pools in ({}, {"between_modules": inside})
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
