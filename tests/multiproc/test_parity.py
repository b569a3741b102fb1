"""Training through the pool equals a plain loop, and injected faults break the equality."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
from forked_ranks import forked_ranks
from parity import compare

FAULTS = ["drop_gradient", "leak_documents", "local_count", "skip_tap", "stale_weights"]
# Maximum relative differences of losses and weights, promised for every layout.
TOLERANCES = {
    ("float32", "sgd"): (1e-6, 1e-5),
    ("float32", "adamw"): (1e-6, 1e-4),
    ("float64", "adamw"): (1e-8, 2e-6),
}


def measure(folder: Path, **changes: Any) -> dict[str, Any]:
    given = {
        "steps": 4,
        "ranks": None,
        "encoder_ranks": 1,
        "backbone_ranks": 1,
        "mode": "strict",
        "dtype": "float32",
        "device": "cpu",
        "model": "smallest",
        "optimizer": "adamw",
        "fault": None,
        **changes,
    }
    return compare(folder, argparse.Namespace(**given), run_ranks=forked_ranks)


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


def test_frozen_equals_a_plain_loop_to_the_last_digits(tmp_path: Path) -> None:
    result = measure(tmp_path, backbone_ranks=2, mode="frozen", dtype="float64")
    assert result["max_rel_loss_diff"] <= 1e-12, result
    assert not exceeds(result), result


def test_tied_embeddings_and_an_unused_deepstack_tap_equal_a_plain_loop(tmp_path: Path) -> None:
    result = measure(tmp_path, encoder_ranks=2, dtype="float64", model="tied")
    assert not exceeds(result), result


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


@pytest.mark.deep
@pytest.mark.limit(600)
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("mode", ["strict", "frozen"])
@pytest.mark.parametrize(("dtype", "optimizer"), TOLERANCES)
def test_every_colocated_layout_equals_a_plain_loop(
    ranks: int, mode: str, dtype: str, optimizer: str, tmp_path: Path
) -> None:
    check_whole_run(tmp_path, ranks=ranks, mode=mode, dtype=dtype, optimizer=optimizer)


@pytest.mark.deep
@pytest.mark.limit(600)
@pytest.mark.parametrize("encoder_ranks", [1, 2])
@pytest.mark.parametrize("backbone_ranks", [1, 2])
@pytest.mark.parametrize("mode", ["strict", "frozen"])
@pytest.mark.parametrize(("dtype", "optimizer"), TOLERANCES)
def test_every_decoupled_layout_equals_a_plain_loop(
    encoder_ranks: int, backbone_ranks: int, mode: str, dtype: str, optimizer: str, tmp_path: Path
) -> None:
    check_whole_run(
        tmp_path,
        encoder_ranks=encoder_ranks,
        backbone_ranks=backbone_ranks,
        mode=mode,
        dtype=dtype,
        optimizer=optimizer,
    )


def check_whole_run(folder: Path, **changes: Any) -> None:
    result = measure(folder, steps=30, **changes)
    assert result["weight_change"] >= 0.01
    assert not exceeds(result), result
    if (result["mode"], result["dtype"]) == ("frozen", "float64"):
        assert result["max_rel_loss_diff"] <= 1e-12, result
