from __future__ import annotations

import resource
from pathlib import Path

from flowtrain.train.metrics import cut


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
