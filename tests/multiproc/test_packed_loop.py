"""A DDP loop with packed batches has the losses of a plain loop, also after a kill."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch
from forked import start_program
from support import imported

from flowtrain.data.order import SampleOrder

PROGRAM = Path(__file__).with_name("packed_loop.py")


def run(folder: Path, attempt: str, *, dies_at: int = -1) -> list[int]:
    """Exit codes of both ranks."""
    ranks = [start_program(PROGRAM, folder, rank, attempt, dies_at) for rank in range(2)]
    return [rank.wait(timeout=100) for rank in ranks]


def plain_losses(loop: ModuleType) -> tuple[list[float], torch.nn.Module]:
    """The same steps in one process without FlowTrain's loader: means over target tokens."""
    rows, model = loop.dataset(), loop.Model()
    optim = loop.optimizer(model)
    order = SampleOrder(len(rows), loop.SEED, shuffle=True)
    size = loop.BATCH * loop.MICROBATCHES * loop.RANKS
    losses = []
    for epoch in range(loop.EPOCHS):
        drawn = [order.index(epoch * len(rows) + i) for i in range(len(rows))]
        for start in range(0, len(drawn), size):
            step = [rows[i] for i in drawn[start : start + size]]
            targets = sum(label != -100 for row in step for label in row["labels"][1:])
            loss = model(step) / targets
            loss.backward()
            optim.step()
            optim.zero_grad()
            losses.append(float(loss.detach()))
    return losses, model


@pytest.mark.limit(240)
def test_two_ranks_killed_and_resumed_have_the_losses_of_a_plain_loop(tmp_path: Path) -> None:
    loop = imported(PROGRAM)
    losses, model = plain_losses(loop)
    # The eighth batch of a rank is the second of its fourth step, in the middle of an epoch.
    died, other = run(tmp_path, "first", dies_at=7)[::-1]
    assert died == -9 and other != 0
    assert len(torch.load(tmp_path / "saved.pt")["losses"]) == 3
    assert run(tmp_path, "second") == [0, 0]
    saved = torch.load(tmp_path / "saved.pt")
    assert saved["losses"] == pytest.approx(losses, rel=1e-12)
    for name, weights in model.state_dict().items():
        torch.testing.assert_close(saved["model"][name], weights, rtol=1e-9, atol=1e-12)
