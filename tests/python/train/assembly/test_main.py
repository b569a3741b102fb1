from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MISSING = "flowtrain: encoder.0 ends: ConfigError: {path}: there is no such file"


def test_a_rank_that_cannot_be_set_up_prints_why_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "gone.yaml"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "flowtrain.train.assembly.main", str(path)),
            *("--world", "encoder", "--store", "127.0.0.1:1", "--nonce", "n"),
        ],
        env={**os.environ, "RANK": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == MISSING.format(path=path)
