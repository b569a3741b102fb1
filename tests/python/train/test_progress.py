"""The line that a run is watched by."""

from __future__ import annotations

import os
import pty
import sys
from pathlib import Path

import pytest

from flowtrain.plan import StepPlan
from flowtrain.train.close import Verdict
from flowtrain.train.metrics import Metrics, StepTiming


def test_progress_on_a_terminal_is_one_row_of_plain_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = Verdict(
        action="apply", scale=1.0, loss=2.5, grad_norm=1.0, num_targets=8, wait_s={"encoder": 0.5}
    )
    timing = StepTiming(seconds=1.0, pool={"segments": [], "bytes_published": 0})
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setenv("COLUMNS", "30")
        metrics = Metrics(tmp_path, steps=9, peak_flops=1e9)
        for step in range(2):
            plan = StepPlan(step=step, kind="train")
            metrics.step(plan, verdict, lr=1e-3, skipped=0, ages=[], timing=timing)
        metrics.close()
        shown = ""
        while not shown.endswith("\n"):
            shown += os.read(ours, 4096).decode()
    os.close(ours)
    # Control sequences, such as one that hides the cursor, would outlive a killed rank.
    assert "\x1b" not in shown
    assert shown.replace("\r\n", "\n").split("\r") == [
        "",
        "step 1/9  loss 2.5000  grad 1",
        "step 2/9  loss 2.5000  grad 1\n",
    ]
