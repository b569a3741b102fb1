from __future__ import annotations

import resource
from pathlib import Path

import pytest

from flowtrain.train.state.logs import cut, read_log


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


def test_a_damaged_line_in_the_middle_of_a_log_is_named(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    text = '{"step":0}\nnot JSON\n{"step":2}\n'
    log.write_text(text)
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2: not a line of this log"):
        cut(log, 2)
    assert log.read_text() == text
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2: not a line of this log"):
        read_log(log)
