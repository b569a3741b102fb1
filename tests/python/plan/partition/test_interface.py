"""Memory, recomputation and errors of a partition, on examples that can be worked by hand."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from flowtrain.plan.partition import Layers, NoPartitionError, Partition, Tap, partition
from flowtrain.plan.partition.stages import StageTable


def equal_layers(count: int, **changes: Any) -> Layers:
    """Layers of 1 + 2 s, 100 bytes of state, and 10, 6 or 2 bytes of activations."""
    return Layers.of(
        **{
            "forward_s": [1.0] * count,
            "backward_input_s": 1.0,
            "backward_weight_s": 1.0,
            "state_bytes": 100,
            "activation_bytes": [[10] * count, [6] * count, [2] * count],
            "recompute_s": [[0.0] * count, [0.25] * count, [1.0] * count],
            "output_bytes": 0,
            **changes,
        }
    )


def cut(layers: Layers, **changes: Any) -> Partition:
    return partition(
        layers,
        **{
            "stages": 2,
            "microbatches": 8,
            "memory_bytes": 1 << 40,
            "link_bytes_per_s": math.inf,
            **changes,
        },
    )


@pytest.mark.parametrize(
    ("memory_bytes", "microbatches", "levels"),
    [
        # Two layers with 2 and 1 microbatches in flight: 200 + 2 x 20 and 200 + 20 bytes.
        (240, 8, ["none", "none"]),
        # At "selective" 200 + 2 x 12, and 4 for what a layer holds while it runs.
        (239, 8, ["selective", "none"]),
        (228, 8, ["selective", "none"]),
        # At "full" 200 + 2 x 4 + 8.
        (227, 8, ["full", "none"]),
        (219, 8, ["full", "selective"]),
        # One microbatch is never in flight twice.
        (220, 1, ["none", "none"]),
    ],
)
def test_a_stage_recomputes_as_little_as_its_microbatches_in_flight_allow(
    memory_bytes: int, microbatches: int, levels: list[str]
) -> None:
    found = cut(equal_layers(4), memory_bytes=memory_bytes, microbatches=microbatches)
    assert [stage.level for stage in found.stages] == levels
    assert [stage.end for stage in found.stages] == [2, 4]
    assert all(stage.memory_bytes + stage.free_bytes == memory_bytes for stage in found.stages)


def test_a_stage_leaves_room_for_what_runs_between_steps() -> None:
    # A stage of two layers has 200 bytes of state then, and passes of the first one take 40.
    limits = {"memory_bytes": 241}
    for other_bytes, expected in ((40, [240, 240]), (41, [241, 241])):
        found = cut(equal_layers(4), other_bytes=other_bytes, **limits)
        assert [stage.memory_bytes for stage in found.stages] == expected
        assert [stage.level for stage in found.stages] == ["none", "none"]
    with pytest.raises(NoPartitionError, match="needs 242 bytes, 1 more"):
        cut(equal_layers(4), other_bytes=42, **limits)


def test_layers_move_to_the_stage_that_need_not_recompute() -> None:
    # The first stage would hold 4 x 10 x 2 bytes; with 3 layers it need not recompute.
    layers = equal_layers(8, state_bytes=0, recompute_s=[[0.0] * 8, [2.0] * 8, [2.0] * 8])
    found = cut(layers, memory_bytes=64)
    assert [(stage.end, stage.level) for stage in found.stages] == [(3, "none"), (8, "none")]


def test_frozen_layers_fill_the_first_stage() -> None:
    # Six frozen layers of 1 s, and six of 3 s.
    layers = equal_layers(12, trained=[False] * 6 + [True] * 6)
    found = cut(layers)
    assert [(stage.end, stage.seconds) for stage in found.stages] == [(8, 12.0), (12, 12.0)]
    # They keep nothing: the two trained layers hold 20 bytes for each of two microbatches, and a
    # frozen layer 10 while it runs.
    assert found.stages[0].memory_bytes == 800 + 2 * 20 + 10


def test_a_cut_avoids_the_layers_that_a_tap_skips() -> None:
    layers = equal_layers(6, output_bytes=1, taps=[Tap(source=2, target=4, bytes=50)])
    ends = [cut(layers, link_bytes_per_s=rate).stages[0].end for rate in (math.inf, 1.0)]
    assert ends == [3, 2]


def test_the_bytes_and_the_stages_that_an_error_names_are_enough_and_no_more() -> None:
    layers = equal_layers(7, forward_s=[1.0, 2.0, 1.0, 1.0, 3.0, 1.0, 1.0])
    limits = {"stages": 2, "memory_bytes": 300}
    with pytest.raises(NoPartitionError) as error:
        cut(layers, **limits)
    assert str(error.value) == (
        "no partition into 2 stages fits memory_bytes=300: in the one with the lowest peak, "
        "stage 1 (layers 3 to 6, recomputation 'full', microbatches in flight: 1) needs 416 "
        "bytes, 116 more; raise memory_bytes to 416, or use 4 stages"
    )
    assert cut(layers, **limits | {"memory_bytes": 416})
    assert cut(layers, **limits | {"stages": 4})
    with pytest.raises(NoPartitionError, match="needs 416 bytes, 1 more"):
        cut(layers, **limits | {"memory_bytes": 415})
    with pytest.raises(NoPartitionError, match="or use 4 stages$"):
        cut(layers, **limits | {"stages": 3})


def test_no_number_of_stages_is_named_if_one_layer_is_too_large() -> None:
    layers = equal_layers(4, state_bytes=[100, 100, 400, 100])
    message = r"stage 1 \(layers 2 to 3, .*\) needs 512 bytes, 212 more; raise memory_bytes to 512$"
    with pytest.raises(NoPartitionError, match=message):
        cut(layers, memory_bytes=300)


def test_only_the_given_levels_are_chosen() -> None:
    limits = {"memory_bytes": 239}
    full = cut(equal_layers(4), levels=["full", "none"], **limits)
    assert [stage.level for stage in full.stages] == ["full", "none"]
    with pytest.raises(NoPartitionError, match="recomputation 'none'.* raise memory_bytes to 240"):
        cut(equal_layers(4), levels=["none"], **limits)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": 5}, "stages=5: must be from 1 to 4, since the model has 4 layers"),
        ({"stages": 0}, "stages=0: must be from 1 to 4"),
        ({"microbatches": 1.5}, "microbatches=1.5: must be an integer"),
        ({"microbatches": 0}, "microbatches=0: must be from 1"),
        ({"memory_bytes": 0}, "memory_bytes=0: must be from 1"),
        ({"link_bytes_per_s": math.nan}, "link_bytes_per_s=nan: must be greater than 0"),
        ({"levels": []}, "levels=[]: choose one or more of none, selective, full"),
        ({"levels": ["half"]}, "levels=['half']: choose one or more of none, selective, full"),
        ({"policy": "best"}, "policy 'best': choose from exact, replayed, omnibal"),
    ],
)
def test_a_bad_argument_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        cut(equal_layers(4), **changes)


def test_the_longest_stage_is_the_one_with_recomputation_and_sends() -> None:
    layers = equal_layers(4, output_bytes=1)
    found = cut(layers, memory_bytes=239, link_bytes_per_s=100.0)
    # 2 x 3 s, 2 x 0.25 s and 0.01 s; 2 x 3 s and 0.01 s.
    assert [stage.seconds for stage in found.stages] == pytest.approx([6.51, 6.01])
    assert found.bottleneck == 0
    assert found.step_s == pytest.approx(6.51 + 6.01 + 7 * 6.51)
    assert found.explain().splitlines()[1].endswith("longest")


def test_why_nothing_fits_is_found_out_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search over meshes asks for thousands of partitions that do not fit, and reads no why."""
    explained = []
    least_bytes = StageTable.least_bytes

    def counted(table: StageTable) -> Any:
        explained.append(table)
        return least_bytes(table)

    monkeypatch.setattr(StageTable, "least_bytes", counted)
    with pytest.raises(NoPartitionError) as error:
        cut(equal_layers(4), memory_bytes=100)
    assert not explained
    assert "no partition into 2 stages fits" in str(error.value) and explained
