"""The secret of a job, in a file."""

from __future__ import annotations

from pathlib import Path

from flowtrain.config.checks import ConfigError

# Letters, digits and what else tokens have; a shorter one could be guessed.
_MIN_TOKEN = 16


def read_token(path: Path | None) -> bytes:
    """The token in a file, which only its owner can read.

    Raises:
        ConfigError: No file is given, others can read it, or it is too short.
    """
    if path is None:
        raise ConfigError(
            "--token: give a file with a secret, the same on all hosts; make one: "
            "(umask 077 && openssl rand -hex 32 > token)"
        )
    if path.is_dir():
        raise ConfigError(f"--token {path}: it is a folder; give a file")
    if path.stat().st_mode & 0o077:
        raise ConfigError(f"--token {path}: others can read it; run: chmod 600 {path}")
    token = path.read_bytes().strip()
    if len(token) < _MIN_TOKEN:
        raise ConfigError(
            f"--token {path}: {len(token)} characters, at least {_MIN_TOKEN}; "
            f"make one: openssl rand -hex 32 > {path}"
        )
    return token
