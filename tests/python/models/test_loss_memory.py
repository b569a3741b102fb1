"""What the loss holds of its logits, as the planner counts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from flowtrain.config.parallel import ModuleParallel, Recompute
from flowtrain.models.head import head_loss
from flowtrain.models.packed_batch import pack
from flowtrain.models.recompute import recompute_blocks
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


@pytest.mark.parametrize("chunks", [1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_has_twelve_bytes_of_each_logit_of_a_chunk_at_once(
    dtype: torch.dtype, chunks: int, tmp_path: Path
) -> None:
    head = torch.nn.Linear(_WIDTH, _VOCABULARY, bias=False, dtype=dtype)
    head.weight.requires_grad_(False)
    hidden = torch.ones(_TARGETS, _WIDTH, dtype=dtype, requires_grad=True)
    logit_bytes = 4 * _VOCABULARY * _TARGETS // chunks

    def run() -> None:
        head_loss(
            head, hidden, torch.arange(_TARGETS), vocabulary=_VOCABULARY, logit_bytes=logit_bytes
        ).backward()

    # Kept logarithms of probabilities, and two gradients of them.
    assert _peak_bytes(run, tmp_path) / logit_bytes == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize("level", ["none", "full"])
def test_the_loss_of_a_row_is_bounded_beside_recomputed_layers(
    level: Recompute, tmp_path: Path
) -> None:
    write_tiny_model(tmp_path, SMALLEST, family="llava")
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"]["vocab_size"] = _VOCABULARY
    (tmp_path / "config.json").write_text(json.dumps(config))
    family = family_for(tmp_path)
    labels = torch.arange(_TARGETS + 1) + 1000
    batch = pack(
        input_ids=labels,
        labels=labels,
        position_ids=torch.arange(_TARGETS + 1)[None],
        doc_lengths=[_TARGETS + 1],
        grids=[],
        visual_ids=family.visual_ids,
        device=torch.device("cpu"),
    )
    backbone: Any = family.build(
        "backbone", weights=None, seed=0, dtype=torch.float32, device=torch.device("cpu")
    )
    recompute_blocks(family, backbone, ModuleParallel(recompute=level))
    # Their gradients would be most of what is left.
    for module in (backbone.lm_head, backbone.model.language_model.embed_tokens):
        module.requires_grad_(False)
    logits = 4 * _VOCABULARY * _TARGETS
    peaks = []
    for backbone.logit_bytes in (logits, logits // 10):
        backbone.zero_grad()
        peaks.append(_peak_bytes(lambda: backbone(batch, None).loss_sum.backward(), tmp_path))
    assert peaks[0] > 3 * logits
    assert peaks[0] - peaks[1] > 0.85 * 3 * logits
