"""Training through the pool equals a plain loop, and injected faults break the equality."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from forked_ranks import forked_ranks
from parity import compare
from parity_matrix import FAMILIES, MOE, ROWS, TOLERANCES, Row

FAULTS = ["drop_gradient", "leak_documents", "local_count", "skip_tap", "stale_weights"]


def measure(folder: Path, **changes: Any) -> dict[str, Any]:
    row = Row(**{"dtype": "float32", "optimizer": "adamw", **changes})
    return compare(folder, row.arguments(steps=4), run_ranks=forked_ranks)


def exceeds(result: dict[str, Any]) -> bool:
    loss, weights = TOLERANCES[result["dtype"], result["optimizer"]]
    return result["max_rel_loss_diff"] > loss or result["max_rel_weight_diff"] > weights


def test_two_by_two_strict_equals_a_plain_loop(tmp_path: Path) -> None:
    result = measure(tmp_path, encoder_ranks=2, backbone_ranks=2)
    assert result["clipped_steps"] == result["steps"]
    assert not exceeds(result), result


@pytest.mark.parametrize(("ranks", "mode"), [(2, "strict"), (3, "frozen")])
def test_colocated_equals_a_plain_loop_to_the_last_digits(
    ranks: int, mode: str, tmp_path: Path
) -> None:
    result = measure(tmp_path, ranks=ranks, mode=mode, dtype="float64")
    assert result["bytes_through_pool"] > 0, "no image moved between the ranks"
    assert result["max_rel_loss_diff"] <= 1e-12, result
    assert not exceeds(result), result


@pytest.mark.parametrize(
    ("model", "freeze"),
    [*((model, ()) for model in FAMILIES), ("qwen3-vl", ("projector",)), ("llava", ("backbone",))],
)
def test_a_frozen_tower_equals_a_plain_loop_to_the_last_digits(
    model: str, freeze: tuple[str, ...], tmp_path: Path
) -> None:
    result = measure(
        tmp_path, model=model, mode="frozen", freeze=freeze, backbone_ranks=2, dtype="float64"
    )
    assert result["max_rel_loss_diff"] <= 1e-12, result
    assert not exceeds(result), result


@pytest.mark.parametrize("mode", ["strict", "frozen"])
def test_videos_cross_the_pool_as_images_do(mode: str, tmp_path: Path) -> None:
    result = measure(tmp_path, videos=True, mode=mode, encoder_ranks=2, dtype="float64")
    assert not exceeds(result), result


@pytest.mark.parametrize("model", FAMILIES[1:])
def test_every_family_equals_a_plain_loop(model: str, tmp_path: Path) -> None:
    result = measure(tmp_path, model=model, ranks=2, dtype="float64")
    assert not exceeds(result), result


def test_parameter_groups_equal_those_of_a_plain_loop(tmp_path: Path) -> None:
    result = measure(tmp_path, encoder_ranks=2, dtype="float64", groups=True)
    assert not exceeds(result), result


def test_adapters_equal_those_of_peft_in_a_plain_loop(tmp_path: Path) -> None:
    lora = (("backbone", 4), ("encoder", 2))
    result = measure(tmp_path, lora=lora, backbone_ranks=2, dtype="float64")
    assert result["weight_change"] > 0.01
    assert not exceeds(result), result


def test_tied_embeddings_and_an_unused_deepstack_tap_equal_a_plain_loop(tmp_path: Path) -> None:
    result = measure(tmp_path, encoder_ranks=2, dtype="float64", tied=True)
    assert not exceeds(result), result


@pytest.mark.deep
@pytest.mark.parametrize("model", FAMILIES[1:])
def test_a_leak_between_documents_exceeds_the_tolerances_of_every_family(
    model: str, tmp_path: Path
) -> None:
    result = measure(tmp_path, model=model, ranks=2, fault="faults:leak_documents")
    assert exceeds(result), result


@pytest.mark.parametrize(
    "fault", [FAULTS[0], *(pytest.param(fault, marks=pytest.mark.deep) for fault in FAULTS[1:])]
)
def test_an_injected_fault_exceeds_the_tolerances(fault: str, tmp_path: Path) -> None:
    backbone_ranks = 2 if fault == "local_count" else 1
    result = measure(tmp_path, backbone_ranks=backbone_ranks, fault=f"faults:{fault}")
    assert exceeds(result), result


@pytest.mark.deep
@pytest.mark.parametrize("fault", FAULTS)
def test_an_injected_fault_exceeds_the_tolerances_of_a_colocated_run(
    fault: str, tmp_path: Path
) -> None:
    result = measure(tmp_path, ranks=2, fault=f"faults:{fault}")
    assert exceeds(result), result


@pytest.mark.parametrize("model", ["qwen3-vl", MOE])
def test_sharded_modules_equal_a_plain_loop(model: str, tmp_path: Path) -> None:
    sharded = {"encoder": "optimizer", "backbone": "full"}
    result = measure(tmp_path, model=model, ranks=2, dtype="float64", **sharded)
    assert result["max_rel_loss_diff"] <= 1e-12, result
    assert not exceeds(result), result


@pytest.mark.deep
@pytest.mark.parametrize("fault", ["double_gradient", "local_count", "mean_gradients"])
def test_an_injected_fault_exceeds_the_tolerances_of_a_sharded_run(
    fault: str, tmp_path: Path
) -> None:
    # Clipping and AdamW hide a factor of all gradients; SGD shows that of one module.
    result = measure(
        tmp_path,
        encoder_ranks=2,
        backbone_ranks=2,
        encoder="replicated" if fault == "mean_gradients" else "full",
        backbone="full",
        optimizer="sgd",
        fault=f"faults:{fault}",
    )
    assert exceeds(result), result


@pytest.mark.deep
@pytest.mark.limit(600)
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_row_of_the_matrix_equals_a_plain_loop(row: Row, tmp_path: Path) -> None:
    result = compare(tmp_path, row.arguments(steps=12), run_ranks=forked_ranks)
    assert row.misses(result) == [], result
