from __future__ import annotations

import math
from typing import Any

import pytest

from flowtrain.config import ConfigError
from flowtrain.cost import Counts, Layer, Product
from flowtrain.cost.timing import DataSheetTiming, PassSeconds
from flowtrain.plan.cluster import parse_cluster
from flowtrain.plan.pools import Measured, pools_of
from flowtrain.plan.search.assumptions import assumptions_of
from flowtrain.plan.search.context import Context
from flowtrain.plan.sensitivity import EFFICIENCIES
from flowtrain.plan.space import Rules, Space
from tests.planned import small_model, small_work

LINEAR = Layer(
    name="linear", part="backbone", products=(Product("tokens", 2e9),), saved=(), reaches_loss=True
)
ROW = Counts(tokens=4096, pairs=4096**2 / 2)


class OneSecond:
    """Measured times that do not depend on the layer."""

    def seconds(
        self, layer: Layer, counts: Counts, *, tp: int = 1, cp: int = 1, ep: int = 1
    ) -> PassSeconds:
        return PassSeconds(forward=1.0, backward_input=1.0, backward_weight=1.0)


def test_each_group_is_a_pool_with_the_figures_of_its_type() -> None:
    fast, slow = pools_of(parse_cluster("2x8xH100+1x4xA100"), "bfloat16")
    assert (fast.gpu_type, fast.gpus, slow.gpu_type, slow.gpus) == ("H100", 16, "A100-80GB", 4)
    assert slow.topology.devices_per_node == 4
    assert fast.timing_source.startswith("data sheet: ")
    ratio = slow.timing.seconds(LINEAR, ROW).forward / fast.timing.seconds(LINEAR, ROW).forward
    # Training reaches 0.6 of the peak of an H100, and 0.75 of that of an A100.
    assert ratio == pytest.approx(989 * 0.6 / (312 * 0.75))


@pytest.mark.parametrize(
    ("name", "said"),
    [("H200", "llm-foundry"), ("B200", "assumption: that of the H100"), ("910B", "assumption: no")],
)
def test_the_report_says_where_an_efficiency_is_from(name: str, said: str) -> None:
    (pool,) = pools_of(parse_cluster(f"2x8x{name}"), "bfloat16")
    found = assumptions_of(small_model(), small_work(), [pool], Rules())
    sources = {each.name: each.source for each in found}
    assert said in sources[f"efficiency of products with a weight on {pool.gpu_type}"]


def test_rows_cross_the_link_of_a_budget_and_not_of_the_cluster_that_it_is_made_from() -> None:
    (node,), (nodes,) = (pools_of(parse_cluster(f"{n}x4xH100"), "bfloat16") for n in (1, 2))
    assert node.rows_s(1e9) == node.topology.inside.seconds(1e9)
    assert nodes.rows_s(1e9) == nodes.topology.between.seconds(1e9)
    # The planner searches neighbours, one GPU or node less or more, with the prices it knows.
    for asked, other in ((node, nodes), (nodes, node)):
        context, given = (
            Context(small_model(), small_work(), pool, Space(), Rules()) for pool in (asked, other)
        )
        options: dict[str, Any] = {"microbatches": 2, "cutoff_s": math.inf}
        assert context.encoders(0, **options)
        found = context.of_budget(other.gpus).encoders(0, **options)
        assert found == given.encoders(0, **options)
    # GPUs of two types are in different nodes, also if one has a node alone.
    types = pools_of(parse_cluster("1x4xH100+1x4xA100"), "bfloat16")
    slow = types[1].topology.between
    assert [pool.rows_link for pool in types] == [slow, slow]


def test_measured_times_replace_those_of_the_data_sheet() -> None:
    times = Measured(timing=OneSecond(), dtype="float32", source="h100.json")
    (pool,) = pools_of(parse_cluster("2x8xH100"), "float32", {"H100": times})
    assert pool.timing.seconds(LINEAR, ROW).forward == 1.0
    assert pool.timing_source == "h100.json"


@pytest.mark.parametrize(
    ("cluster", "dtype", "measured", "said"),
    [
        (
            "1x8xH100",
            "float32",
            {},
            "model.compute_dtype=float32: the peaks of H100 are those of bf",
        ),
        ("1x8xH200", "float32", {"H100": "float32"}, "x.json: the times of H100 were measured"),
        ("1x8xH100", "bfloat16", {"H100": "float32"}, "x.json: times were measured in float32"),
        ("1x8xH100+1x8xA100", "float32", {"H100": "float32"}, "the peaks of A100-80GB are those"),
    ],
)
def test_times_that_do_not_hold_are_an_error(
    cluster: str, dtype: str, measured: dict[str, str], said: str
) -> None:
    given = {
        name: Measured(timing=OneSecond(), dtype=of, source="x.json")
        for name, of in measured.items()
    }
    with pytest.raises(ConfigError, match=said):
        pools_of(parse_cluster(cluster), dtype, given)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", EFFICIENCIES)
def test_an_efficiency_is_scaled_alone(name: str) -> None:
    (sheet,) = pools_of(parse_cluster("2x8xH100"), "bfloat16")
    measured = Measured(timing=OneSecond(), dtype="bfloat16", source="x.json")
    (profiled,) = pools_of(parse_cluster("2x8xH100"), "bfloat16", {"H100": measured})
    pool = profiled if name == "measured times" else sheet
    before, after = _speeds(pool), _speeds(EFFICIENCIES[name](pool, 0.9))
    changed = {key: after[key] / before[key] for key in before if after[key] != before[key]}
    assert list(changed) == [name]
    assert changed[name] == pytest.approx(0.9)


def _speeds(pool: object) -> dict[str, float]:
    """Rates of a pool by the efficiency that they are proportional to."""
    from flowtrain.plan.space import GpuPool

    assert isinstance(pool, GpuPool)
    timing = pool.timing
    found = {
        "memory bandwidth": pool.memory_bytes_per_s,
        "links inside nodes": pool.topology.inside.bytes_per_s,
        "links between nodes": pool.topology.between.bytes_per_s,
    }
    if isinstance(timing, DataSheetTiming):
        assert timing.memory_bytes_per_s == pool.memory_bytes_per_s
        found |= {
            "products with a weight": timing.linear.maximum,
            "attention": timing.attention.maximum,
        }
    else:
        found["measured times"] = 1 / timing.seconds(LINEAR, ROW).forward
    return found
