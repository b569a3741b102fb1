from __future__ import annotations

import json
import math
import resource
import sys
from pathlib import Path

import pytest

from flowtrain.plan import StepPlan
from flowtrain.train.control.close import Verdict
from flowtrain.train.ranks.metrics import Metrics, StepTiming, cut, read_log


def log_step(metrics: Metrics) -> None:
    """Log a step that is not finite."""
    metrics.step(
        StepPlan(step=0, kind="train"),
        Verdict(
            action="skip", scale=0, loss=math.nan, grad_norm=math.inf, num_targets=1, wait_s={}
        ),
        lr=0.1,
        skipped=0,
        ages=[],
        timing=StepTiming(seconds=1.0, pool={"segments": [], "bytes_published": 0}),
    )


def test_a_log_is_cut_where_nothing_more_can_be_written(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"step":0}\n{"step":1}\n{"step":2}\n{"step":3')
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        cut(log, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert log.read_text() == '{"step":0}\n{"step":1}\n'


def test_a_log_on_a_full_disk_is_named(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, steps=1, peak_flops=1.0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(OSError, match=r"metrics\.jsonl"):
            log_step(metrics)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_damaged_line_in_the_middle_of_a_log_is_named(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    text = '{"step":0}\nnot JSON\n{"step":2}\n'
    log.write_text(text)
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2: not a line of this log"):
        cut(log, 2)
    assert log.read_text() == text
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2: not a line of this log"):
        read_log(log)


def test_a_step_that_is_not_finite_is_json_where_standard_output_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    metrics = Metrics(tmp_path, steps=1, peak_flops=1.0)
    log_step(metrics)
    metrics.close()
    [line] = read_log(tmp_path / "metrics.jsonl")
    assert (line["step"], line["loss"], line["grad_norm"]) == (0, None, None)
    assert json.dumps(line, allow_nan=False)
