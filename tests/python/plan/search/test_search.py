"""The search against all plans, and what must hold for its results."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy
import pytest

from flowtrain.cost.timing import Timing
from flowtrain.plan.describe import ModelDescription
from flowtrain.plan.fixed import narrowed
from flowtrain.plan.prices.chain import Chain
from flowtrain.plan.prices.encoder import Chunks, EncoderPrice, encoder_prices
from flowtrain.plan.prices.pipeline import Pipeline
from flowtrain.plan.prices.tables import Tables
from flowtrain.plan.result import ModulePlan, NoPlanError, OutOfRangeError, Plan, PlanReport
from flowtrain.plan.search import search
from flowtrain.plan.search.candidates import backbone_shapes, encoder_shapes, row_of
from flowtrain.plan.search.context import Context
from flowtrain.plan.search.coupled import Colocated, Prefix
from flowtrain.plan.space import MODES, GpuPool, Rules, Space
from flowtrain.plan.work import Work
from tests.planned import small_model, small_pool, small_work, two_encoders

SPACE = Space(tp=(1, 2), cp=(1, 2), pp=(1, 2, 3), ep=(1,), microbatches=(1, 2, 3, 4, 8))
RULES = Rules()


def placed(sizes: Sequence[int], gpus: int) -> bool:
    """Whether modules fit into nodes of four, by trying all nodes for the part of each."""
    left = [4] * (gpus // 4) + [gpus % 4]
    whole = sum(size // 4 for size in sizes)
    parts = [size % 4 for size in sizes]
    for first in range(len(left) - whole):
        for nodes in itertools.product(range(len(left)), repeat=len(parts)):
            used = [0] * len(left)
            used[first : first + whole] = [4] * whole
            for node, part in zip(nodes, parts, strict=True):
                used[node] += part
            if all(own <= room for own, room in zip(used, left, strict=True)):
                return True
    return False


def all_steps(
    model: ModelDescription, work: Work, pool: GpuPool, mode: str
) -> Iterator[tuple[Hashable, float]]:
    """Kinds and steps of all plans of a mode, priced one by one."""
    tables = Tables(model, work, pool.timing)
    usable = RULES.usable(pool)
    prefix = mode == "prefix"
    chain = Chain(tables, model.layers_of("model" if prefix else "backbone"))
    names = [encoder.name for encoder in model.encoders]
    options: dict[str, Any] = {"pool": pool, "rules": RULES}
    modules = (*names, "backbone") if prefix else ("backbone",)

    known: dict[Hashable, list[EncoderPrice]] = {}

    def priced(
        place: int, groups: int, gpus: int | None = None, *, of: Pipeline | None = None, c: int = 0
    ) -> Iterator[EncoderPrice]:
        """Of the encoders of a step, or of a colocated one whose slots are taken c at a time."""
        own = model.encoders[place]
        beside = Chain(tables, model.layers_of(own.name))
        for shape in encoder_shapes(own, SPACE, pool, gpus=gpus):
            mean = work.share.encoded[own.modality].tokens
            tokens = work.batch * mean / groups / shape.mesh.dp
            chunks = None
            if of is not None:
                slots = c * of.shape.mesh.dp / shape.mesh.dp
                chunks = Chunks(
                    count=math.ceil(of.num_microbatches / c),
                    most_tokens=work.most_of(slots * of.row.most_tokens, own.modality),
                    meets="full" in (shape.sharding, of.shape.sharding)
                    or shape.mesh.dp != of.shape.mesh.dp,
                )
            key = (place, shape, groups, chunks)
            if key not in known:
                known[key] = encoder_prices(
                    beside,
                    shape,
                    encoder=place,
                    tokens=tokens,
                    groups=groups,
                    chunks=chunks,
                    **options,
                )
            yield from known[key]

    encoders = {
        groups: [list(priced(place, groups)) for place in range(len(names))]
        for groups in {1, *(SPACE.microbatches or ())}
    }
    budgets = pool.shares() if mode == "disaggregated" else pool.budgets()
    for gpus, m in itertools.product(budgets, SPACE.microbatches or ()):
        for shape in backbone_shapes(model, SPACE, pool, gpus=gpus, blocks=6, modules=modules):
            row = row_of(model, work, RULES, parts=shape.mesh.dp * m)
            if row is None:
                continue
            widths = [encoder.row_width for encoder in model.encoders]
            rows = work.itemsize * float(numpy.dot(widths, row.most_encoded))
            rows /= shape.mesh.tp * shape.mesh.cp
            pipeline = Pipeline(
                chain,
                shape,
                [row],
                microbatches=[m],
                rows_bytes=[0.0 if prefix else rows],
                **options,
            )

            def step_s(
                memory: float, other: float = 0, *, pipeline: Pipeline = pipeline, m: int = m
            ) -> float:
                cut = pipeline.cut(int(memory), math.ceil(other)) if memory >= 1 else None
                if cut is None:
                    return math.inf
                assert max(rank.total for rank in pipeline.memory(cut.stages)) <= memory + 1e3
                return cut.step_s(m)

            mesh = shape.mesh
            kind = (mesh.tp, mesh.cp, mesh.pp, mesh.ep, shape.sharding, m)
            if prefix:
                yield kind, step_s(usable)
                continue
            if mode == "colocated":
                # No encoder leaves the backbone more than all memory.
                places, alone_s = range(len(names)), step_s(usable)
                best = {False: math.inf, True: math.inf}
                orders = [[list(priced(place, 1, gpus)) for place in places]]
                for c in (1, 2, 4) if mesh.pp == 1 else ():
                    if c < m:
                        options_of: dict[str, Any] = {"of": pipeline, "c": c}
                        orders.append([list(priced(p, 1, gpus, **options_of)) for p in places])
                for number, same in enumerate(orders):
                    for together in itertools.product(*same):
                        working = [price.memory().working for price in together]
                        held = sum(price.memory().total for price in together) - sum(working)
                        once_s = sum(price.fill_s + price.update_s for price in together)
                        if alone_s + once_s < best[number > 0]:
                            found_s = step_s(usable - held, max(working)) + once_s
                            best[number > 0] = min(best[number > 0], found_s)
                for chunked, best_s in best.items():
                    yield (*kind, chunked), best_s
                continue
            cut = pipeline.cut(usable)
            if cut is None:
                continue
            held = min(m, shape.mesh.pp + 1)
            fit = [[p for p in prices if p.memory(held).total <= usable] for prices in encoders[m]]
            for apart in itertools.product(*fit):
                sizes = [gpus, *(price.shape.gpus for price in apart)]
                if placed(sizes, pool.gpus):
                    longest = max(cut.longest_s, *(price.microbatch_s for price in apart))
                    update = max(cut.update_s, *(price.update_s for price in apart))
                    # The first microbatch waits for the rows of all, and the update for all.
                    first, last = (max(getattr(p, n) for p in apart) for n in ("first_s", "last_s"))
                    fill = first + cut.fill_s + cut.heaviest_s + last
                    yield kind, fill + (m - 1) * longest + update


CASES = {
    "one encoder": (small_model(), small_work()),
    "two encoders": (two_encoders(blocks=6), small_work(with_audio=True)),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[ModelDescription, Work]:
    """A model, and work for it."""
    return CASES[request.param]


def found(
    case: tuple[ModelDescription, Work], mode: str, gpus: int, memory_bytes: int
) -> PlanReport:
    return search(
        *case,
        [small_pool(gpus, memory_bytes=memory_bytes)],
        space=replace(SPACE, modes=(mode,)),
        neighbours=False,
        batches=0,
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("gpus", "memory"),
    [
        (4, 150_000_000),
        (8, 60_000_000),
        pytest.param(8, 400_000_000, marks=pytest.mark.deep),
    ],
)
def test_the_search_finds_the_best_of_all_plans(
    case: tuple[ModelDescription, Work], mode: str, gpus: int, memory: int
) -> None:
    pool = small_pool(gpus, memory_bytes=memory)
    of_kind: dict[Hashable, float] = {}
    for kind, step_s in all_steps(*case, pool, mode):
        of_kind[kind] = min(step_s, of_kind.get(kind, math.inf))
    steps = sorted(of_kind.values())
    if not steps or steps[0] == math.inf:
        with pytest.raises(NoPlanError):
            found(case, mode, gpus, memory)
        return
    report = found(case, mode, gpus, memory)
    assert report.best.step_s == pytest.approx(steps[0], rel=1e-12)
    if mode != "disaggregated":
        # Each layout is there once: with fewer GPUs it is no other one.
        best = [plan.step_s for plan in report.plans]
        assert best == pytest.approx(steps[: len(best)], rel=1e-12)
        assert len(best) == min(20, sum(map(math.isfinite, steps)))


def test_heads_of_a_tower_may_be_padded_for_tensor_parallelism() -> None:
    (encoder,) = small_model().encoders
    space = Space(modes=("colocated",), tp=(1, 2, 4), cp=(1,), pp=(1,), microbatches=(2,))
    fixed = narrowed(space, ["encoder.tp=4", "encoder.dp=1"], encoders=["encoder"])

    def tower(heads: int, **changes: Any) -> ModulePlan:
        model = small_model(encoders=(replace(encoder, heads=heads),))
        pool = small_pool(4, **changes)
        return search(model, small_work(), [pool], space=fixed, batches=0).best.modules[0]

    even, odd = tower(4), tower(3)
    # Three heads are four, so that blocks are a third larger; patches and projector are not.
    assert odd.layout.tp == 4
    assert even.once.forward < odd.once.forward < 4 / 3 * even.once.forward
    assert even.memory[0].weights < odd.memory[0].weights < 4 / 3 * even.memory[0].weights
    with pytest.raises(NoPlanError):
        tower(5)  # Eight would be more than a third more.
    with pytest.raises(NoPlanError):
        tower(3, timing=Measured(small_pool(4).timing))


class Measured:
    """Times that are no estimates from a data sheet."""

    def __init__(self, timing: Timing) -> None:
        self.seconds = timing.seconds


def test_a_larger_budget_never_makes_the_step_longer(case: tuple[ModelDescription, Work]) -> None:
    steps = [
        search(
            *case,
            [small_pool(gpus)],
            space=SPACE,
            neighbours=False,
            batches=0,
        )
        for gpus in range(2, 13)
    ]
    assert [report.best.step_s for report in steps] == sorted(
        (report.best.step_s for report in steps), reverse=True
    )
    five, eight = steps[3], steps[6]
    assert five.best.gpus <= 5 and eight.best.gpus <= 8
    # Idle GPUs are paid for.
    four = steps[2]
    if five.best.step_s == four.best.step_s:
        assert (five.best.gpus, five.best.allocated) == (four.best.gpus, 5)
        assert five.best.mfu == pytest.approx(four.best.mfu * 4 / 5)
        assert five.best.gpu_hours_per_billion_tokens == pytest.approx(
            four.best.gpu_hours_per_billion_tokens * 5 / 4
        )


def test_neighbours_are_what_a_search_of_their_own_finds() -> None:
    def step_s(gpus: int) -> float:
        return search(
            small_model(), small_work(), [small_pool(gpus)], space=SPACE, batches=0
        ).best.step_s

    report = search(small_model(), small_work(), [small_pool(8)], space=SPACE, batches=0)
    assert report.smaller is not None and report.larger is not None
    # Nodes are whole.
    assert (report.smaller[0], report.larger[0]) == (4, 12)
    assert report.smaller[1].step_s == pytest.approx(step_s(4))
    assert report.larger[1].step_s == pytest.approx(step_s(12))


def test_times_and_memory_by_kind_add_up(case: tuple[ModelDescription, Work]) -> None:
    modes = [search(*case, [small_pool(8)], space=SPACE, batches=0)]
    for mode in MODES:
        space = replace(SPACE, modes=(mode,))
        modes.append(search(*case, [small_pool(8)], space=space, batches=0))
    for plan in (plan for report in modes for plan in report.plans):
        (first, *_), last = plan.modules, plan.modules[-1]
        slowest = max(max(module.stage_s) for module in plan.modules)
        fills = last.fill_s + last.heaviest_s
        *beside, _ = [module.fill_s for module in plan.modules]
        once = sum(module.once.total for module in plan.modules)
        updates = [module.update_s for module in plan.modules]
        update = max(updates) if plan.mode == "disaggregated" else sum(updates)
        step_s = fills + once + (plan.microbatches - 1) * slowest + update
        # Of several encoders, one may have the longest forward pass, another the longest backward.
        assert plan.step_s <= step_s + sum(beside) + 1e-12
        assert plan.step_s >= step_s + max(beside, default=0.0) - 1e-12
        for module in plan.modules:
            if module.stage_s[0]:
                assert module.microbatch.total == pytest.approx(max(module.stage_s))
                assert module.layout.pp > 1 or module.microbatch.pp == 0 or module != last
            assert max(rank.total for rank in module.memory) <= module.memory_bytes + 1
        assert plan.gpus <= 8 and last.layout.gpus <= 8 and first.layout.gpus <= 8
        if plan.mode == "colocated":
            usable = RULES.usable(small_pool(8)) + 1e3
            encoders = [module.memory[0] for module in plan.modules[:-1]]
            kept = sum(rank.total - rank.working for rank in encoders)
            working = max(rank.working for rank in encoders)
            for rank in last.memory:
                assert kept + rank.total <= usable
                assert kept + working + rank.states <= usable
        assert len(plan.modules) == (1 if plan.mode == "prefix" else len(case[0].encoders) + 1)


def test_uniform_is_said_to_be_optimal_only_if_it_is() -> None:
    report = search(small_model(), small_work(), [small_pool(8)], space=SPACE, batches=0)
    assert report.uniform is not None and report.uniform.mode == "prefix"
    assert (report.uniform_gap == 0) == (report.best.mode == "prefix")
    apart = search(
        small_model(),
        small_work(),
        [small_pool(8)],
        space=replace(SPACE, modes=("colocated",)),
        batches=0,
    )
    assert apart.uniform is None and apart.uniform_gap is None


def test_an_infeasible_budget_says_what_is_missing_and_what_fits(
    case: tuple[ModelDescription, Work],
) -> None:
    arguments: dict[str, Any] = {"space": SPACE, "neighbours": False, "batches": 0}
    model, work = case
    with pytest.raises(NoPlanError) as caught:
        search(model, work, [small_pool(2, memory_bytes=60_000_000)], **arguments)
    message = str(caught.value)
    assert "small: no plan for batch=32 fits 2 T" in message
    assert "GiB are missing on each of 2 GPUs" in message
    fewest = int(message.split("smallest budget that fits is ")[1].split()[0])
    assert f"fits is {fewest} T in nodes of 4" in message
    assert search(model, work, [small_pool(fewest, memory_bytes=60_000_000)], **arguments).best
    smaller = small_pool(fewest).budgets()[-2]
    with pytest.raises(NoPlanError):
        search(model, work, [small_pool(smaller, memory_bytes=60_000_000)], **arguments)


def test_budgets_on_which_nothing_fits_are_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[tuple[str, int]] = []
    for kind in (Prefix, Colocated):

        def counting(
            context: Context, gpus: int, *given: Any, of: Any = kind.all_of, name: str = str(kind)
        ) -> Iterator[Any]:
            tried.append((name, gpus))
            return iter(of(context, gpus, *given))

        monkeypatch.setattr(kind, "all_of", counting)
    space = replace(SPACE, modes=("prefix", "colocated"))
    options: dict[str, Any] = {"space": space, "neighbours": False, "batches": 0}
    # No number of GPUs is enough, and only those asked for are tried with more memory.
    with pytest.raises(NoPlanError, match=r"[^;]* \([^;]* GiB fit\)$"):
        search(small_model(), small_work(), [small_pool(8, memory_bytes=5_000_000)], **options)
    larger = [each for each in tried if each[1] > 8]
    assert max(gpus for _, gpus in larger) > 1000
    assert len(larger) == len(set(larger))


def test_modules_may_be_on_different_types_of_gpus(case: tuple[ModelDescription, Work]) -> None:
    pools = [small_pool(4), small_pool(4, gpu_type="U", memory_bytes=250_000_000)]
    report = search(*case, pools, space=SPACE, batches=0)
    one = search(*case, pools[:1], space=SPACE, batches=0)
    assert report.best.step_s < one.best.step_s
    assert {module.gpu_type for module in report.best.modules} == {"T", "U"}
    assert "modules on GPUs of different types" in report.best.not_run


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "batch=0: it must be at least 1"),
        ({"trained": ("tower",)}, "trained='tower' is no part"),
        ({"target_share": 0.0}, r"target_share=0.0: it must be above 0"),
        ({"microbatch_tokens": 100}, "microbatch_tokens=100: the longest sample of workload"),
    ],
)
def test_bad_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small_work(**changes)


def test_samples_that_cannot_be_planned_are_refused() -> None:
    work = small_work()
    empty = replace(work.workload, tokens=work.workload.tokens[:0])
    with pytest.raises(ValueError, match="workload 'small': it has no tokens"):
        replace(work, workload=empty)
    negative = replace(work.workload, visual_tokens=-work.workload.visual_tokens)
    with pytest.raises(ValueError, match="visual tokens of"):
        replace(work, workload=negative)
    text = replace(work.workload, visual_tokens=numpy.zeros(64, numpy.int64))
    with pytest.raises(ValueError, match="has no images"):
        search(
            small_model(),
            replace(work, workload=text),
            [small_pool(2)],
            space=Space(modes=("colocated",)),
        )
    alone = search(
        small_model(), replace(work, workload=text), [small_pool(2)], space=SPACE, batches=0
    )
    assert alone.best.mode == "prefix"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: small_pool(-1), "pool 'T': gpus=-1: it must be at least 1"),
        (lambda: small_pool(1, flops_per_s=math.nan), "flops_per_s=nan"),
        (lambda: Space(tp=(0,)), "tp=0: it must be at least 1"),
        (lambda: Space(pp=()), "give at least one value"),
        (lambda: Rules(headroom=0.5), "headroom=0.5"),
        (lambda: Space(microbatches=(9,)).microbatches_of(8), "microbatches=9: a step has batch=8"),
        (lambda: replace(small_model(), unused=()), "small: unused has 0 entries"),
    ],
)
def test_bad_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_plans_say_what_the_runtime_does_not_run() -> None:
    space = Space(
        modes=("colocated", "disaggregated"),
        tp=(1,),
        cp=(1,),
        pp=(1,),
        sharding=("replicated",),
        recompute=("none",),
    )
    report = search(small_model(), small_work(), [small_pool(4)], space=space)
    assert {plan.not_run for plan in report.plans} == {()}

    def refused(plan: Plan) -> set[str]:
        return {reason.split(":")[-1].strip() for reason in plan.not_run}

    sharded = search(small_model(), small_work(), [small_pool(4)], space=SPACE, batches=0).plans
    assert set().union(*map(refused, sharded)) & {"tp=2", "cp=2", "pp=2", "sharding=optimizer"}


# With 1024 rows only those of an encoder's items are too few, whatever memory there is.
@pytest.mark.parametrize(("smallest", "layer"), [(1024, "projector"), (1e6, "decoder")])
def test_times_that_are_valid_for_no_plan_are_the_reason_that_is_given(
    smallest: float, layer: str
) -> None:
    timing = replace(small_pool(2).timing, extrapolates=False)  # type: ignore[type-var]
    narrow = replace(timing, linear=replace(timing.linear, smallest=smallest))
    space = replace(SPACE, modes=("colocated", "disaggregated"))
    with pytest.raises(
        OutOfRangeError, match=f"are not valid for any plan of batch=.*; {layer}: .* rows of"
    ):
        search(small_model(), small_work(), [small_pool(2, timing=narrow)], space=space)
