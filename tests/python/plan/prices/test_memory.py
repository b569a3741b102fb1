"""Memory of modules against the cost model, and what is computed again to fit into it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy
import pytest

from flowtrain.cost import Counts, Layer, layer_bytes, state_bytes
from flowtrain.cost.communication import Mesh
from flowtrain.cost.layers import PARTS
from flowtrain.plan.partition import Level
from flowtrain.plan.prices.costs import Shape
from flowtrain.plan.prices.encoder import Chunks
from flowtrain.plan.result import StageLayout
from tests.planned import small_model, small_work
from tests.priced import PLENTY, ROW, encoders, pipeline


def test_one_rank_holds_what_the_cost_model_says() -> None:
    model, work = small_model(), small_work()
    (rank,) = pipeline(Mesh()).memory(pipeline(Mesh()).cut(PLENTY).stages)  # type: ignore[union-attr]
    parameters = sum(model.parameters)
    states = state_bytes(parameters, parameters, work.optim, itemsize=2, stored_itemsize=4)
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
    # The gradients of the weight by two chunks are summed, in bfloat16.
    weight = 2 * model.parameters[-1] * (trained == PARTS)
    assert (ranks[0].working, ranks[1].working) == (2 * logits, 3 * (logits // 4) + weight)
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
        # One block at a time has all of it, when the logits and their gradients are gone.
        spared = max(a.kept - b.kept for a, b in zip(everything, found, strict=True))
        logits = 8 * ROW.most_targets * model.vocabulary
        assert rank.working == pytest.approx(max(logits, spared - everything[-1].kept))
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
        # Weights are gathered from the master weights.
        (Mesh(cp=2, dp=2), "full", (math.inf, 4, 4, 4)),
    ],
)
def test_states_are_divided_over_the_ranks_that_share_them(
    mesh: Mesh, sharding: str, parts: tuple[float, ...]
) -> None:
    whole, divided = (
        found.costs.states.sum(1) for found in (pipeline(Mesh()), pipeline(mesh, sharding=sharding))
    )
    assert divided == pytest.approx(whole / numpy.array(parts))


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


@pytest.mark.parametrize(
    ("sharding", "tied"),
    [("replicated", False), ("replicated", True), ("optimizer", False), ("full", False)],
)
def test_weights_and_gradients_exist_beside_the_states_while_layers_run(
    sharding: str, tied: bool
) -> None:
    """In bfloat16 with float32 gradients, on 4 ranks; FSDP2 has embedding and head as one group."""
    model = small_model()
    if tied:
        parameters = (*model.parameters[:-1], 0)
        model = replace(model, parameters=parameters, tied_parameters=model.parameters[-1])
    working = pipeline(
        Mesh(dp=4), model=model, work=small_work(), module="backbone", sharding=sharding
    ).costs.working
    logits = 2 * 4 * ROW.most_targets * model.vocabulary
    end, block = small_model().parameters[-1], 12 * model.width**2
    expected = {
        # A gradient as it is made, and cast; a tied one waits for the other.
        "replicated": (logits, 2 * end * tied, 2 * end * (1 + tied) + 4 * end),
        # Of embedding and head beside their sums, and to be scattered, when those of blocks have
        # been scattered already.
        "optimizer": (
            logits,
            2 * end + (2 + 4 + 1) * block,
            2 * 2 * end + (4 + 1) * 2 * end - 6 * 3 * block,
        ),
        # Two gathered blocks beside embedding and head.
        "full": (
            2 * 2 * end + 2 * block + logits,
            2 * 2 * end + 2 * end + (2 * 2 + 2 + 4) * block,
            2 * end + (4 + 1) * 2 * end,
        ),
    }
    assert (working.head[0], working.block.max(), working.end) == expected[sharding]


def test_an_item_is_of_one_microbatch() -> None:
    shape = Shape(Mesh(dp=2), "replicated")
    work = small_work(microbatch_tokens=1000, item_tokens=3000)
    held, again = encoders(shape, work, 4800.0)
    item = work.most_of(1000, "vision")
    assert work.largest_input("vision") < item < work.item_tokens
    assert again.fixed.working / held.held.activations == pytest.approx(item / (1.05 * 4800))
