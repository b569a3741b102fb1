from __future__ import annotations

import resource
from pathlib import Path

import pytest

from flowtrain.train.state import atomic
from flowtrain.train.state.logs import Log, cut, read_log
from flowtrain.train.state.resume import FINGERPRINT


def test_a_log_is_cut_on_a_full_disk(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"step":0}\n{"step":1}\n{"step":2}\n{"step":3')
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        cut(log, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert log.read_text() == '{"step":0}\n{"step":1}\n'


def test_a_process_of_an_earlier_start_adds_no_line(tmp_path: Path) -> None:
    atomic.write_text(tmp_path / FINGERPRINT, "{}")
    before = Log(tmp_path / "metrics.jsonl")
    before.append_values({"step": 0})
    atomic.write_text(tmp_path / FINGERPRINT, "{}")
    Log(tmp_path / "metrics.jsonl").append_values({"step": 1})
    with pytest.raises(ValueError, match=r"metrics\.jsonl: the run was started again"):
        before.append_values({"step": 2})
    assert [line["step"] for line in read_log(tmp_path / "metrics.jsonl")] == [0, 1]


def test_a_damaged_line_in_the_middle_of_a_log_is_named(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    text = '{"step":0}\nnot JSON\n{"step":2}\n'
    log.write_text(text)
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2: not a line of this log"):
        cut(log, 2)
    assert log.read_text() == text
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2: not a line of this log"):
        read_log(log)
