"""The file of a job's secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowtrain.config import ConfigError
from flowtrain.hosts.token import read_token


def test_a_token_that_others_can_read_or_guess_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_token(path)
    path.chmod(0o600)
    assert read_token(path) == b"0123456789abcdef"
    path.write_text("short")
    with pytest.raises(ConfigError, match="5 characters, at least 16"):
        read_token(path)
    with pytest.raises(ConfigError, match="it is a folder; give a file"):
        read_token(tmp_path)
