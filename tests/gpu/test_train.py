"""Training on a device, with the pool in either memory, against plain loops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from parity import MODELS, compare
from parity_matrix import Row
from support import Run, end_runs, run_tree, write_tiny_data

pytestmark = [pytest.mark.gpu, pytest.mark.limit(400)]

# Maximum relative differences of losses and weights. In float32 only the order of sums differs;
# AdamW amplifies that where it divides small gradients by their own size. In bfloat16, with 8 bits,
# a loss may be off by a few times 2**-9 after some steps, a tenth of its decrease. No limit for its
# weights: a bias that starts at zero is the sum of a few rounded steps.
BARS = {
    ("float32", "sgd"): (1e-5, 1e-4),
    ("float32", "adamw"): (1e-5, 1e-3),
    ("bfloat16", "sgd"): (5e-3, None),
}


ROWS = [
    *(
        Row(dtype=dtype, optimizer=optimizer, mode=mode)
        for dtype, optimizer in BARS
        for mode in ("strict", "frozen")
    ),
    *(
        Row(model=model, dtype="bfloat16", optimizer="sgd", mode=mode)
        for model in list(MODELS)[1:]
        for mode in ("strict", "frozen")
    ),
    Row(compile=True, dtype="float32", optimizer="sgd"),
    Row(compile=True, dtype="bfloat16", optimizer="sgd"),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_training_on_a_device_equals_a_plain_loop_there(row: Row, tmp_path: Path) -> None:
    result = compare(tmp_path, row.arguments(steps=8, device="cuda"))
    print(result)
    loss, weights = BARS[row.dtype, row.optimizer]
    assert result["weight_change"] >= 1e-3
    assert result["max_rel_loss_diff"] <= loss
    if weights is not None:
        assert result["max_rel_weight_diff"] <= weights


@pytest.fixture(autouse=True)
def _no_run_is_left() -> Iterator[None]:
    with end_runs():
        yield


@pytest.mark.parametrize(
    "flow", [{"encoder_ranks": 1}, {"ranks": 2}], ids=["decoupled", "colocated"]
)
def test_rows_in_memory_of_the_device_change_no_loss(flow: dict[str, int], tmp_path: Path) -> None:
    write_tiny_data(tmp_path / "data", text_only=0.2, multi_image=0.2)

    def run(tier: str) -> Run:
        tree = run_tree(
            tmp_path / tier,
            tmp_path / "data",
            flow=flow,
            model={"device": "cuda"},
            pool={"tier": tier, "scale": 1.0},
        )
        return Run(tree, executed=True)

    host, device = run("host"), run("device")
    wanted, found = host.succeed(), device.succeed()
    edges = "".join(path.read_text() for path in (tmp_path / "device").rglob("edges/*.txt"))
    assert "takes device memory" in edges and "takes shared memory" not in edges
    for mine, theirs in zip(found, wanted, strict=True):
        print(mine["loss"], theirs["loss"])
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5)


def test_ranks_that_share_a_device_log_it_and_agree_with_the_host(tmp_path: Path) -> None:
    write_tiny_data(tmp_path / "data", text_only=0.2, multi_image=0.2)
    flow = {"encoder_ranks": 2, "backbone_ranks": 2}
    host = Run(run_tree(tmp_path / "host", tmp_path / "data", flow=flow), executed=True).succeed()
    # More ranks than devices is certain only with one device; with more, NCCL is tested instead.
    run = Run(
        run_tree(tmp_path / "device", tmp_path / "data", flow=flow, model={"device": "cuda"}),
        executed=True,
    )
    device = run.succeed()
    said = run.errors()
    print(said)
    for rank, text in said.items():
        assert "registered with cuda:" in text, rank
    import torch

    if torch.cuda.device_count() == 1:
        assert "by gloo" in said["encoder.0"]
    for mine, theirs in zip(device, host, strict=True):
        print(mine["loss"], theirs["loss"])
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
