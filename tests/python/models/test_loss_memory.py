"""What the loss holds of its logits, as the planner counts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from flowtrain.models.family import PackedBatch
from flowtrain.models.registry import family_for
from flowtrain.models.tiny import SMALLEST, write_tiny_model

_WIDTH, _TARGETS, _VOCABULARY = 8, 255, 20_000


def _peak_bytes(run: Any, folder: Path) -> int:
    """Most bytes that are allocated at once while a function runs, beyond those before."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        run()
    profile.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    found = [each["args"] for each in events if each["name"] == "[memory]"]
    totals = [each["Total Allocated"] for each in found]
    return int(max(totals) - (totals[0] - found[0]["Bytes"]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_has_twelve_bytes_of_each_logit_at_once(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_model(tmp_path, SMALLEST, family="qwen3_vl")
    family = family_for(tmp_path)
    head = torch.nn.Linear(_WIDTH, _VOCABULARY, bias=False, dtype=dtype)
    hidden = torch.ones(_TARGETS, _WIDTH, dtype=dtype)
    monkeypatch.setattr(family, "_logits", lambda *_: head(hidden))
    labels = torch.arange(_TARGETS + 1)
    batch = PackedBatch(
        input_ids=labels, labels=labels, position_ids=labels, doc_lengths=[_TARGETS + 1], grids=[]
    )
    peak = _peak_bytes(lambda: family.loss(head, batch, None).loss_sum.backward(), tmp_path)
    # Kept logarithms of probabilities, and two gradients of them.
    assert peak / (_TARGETS * _VOCABULARY) == pytest.approx(12, rel=0.05)
