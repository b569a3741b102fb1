"""Starts the process that measures, in the environment of a rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import yaml

from flowtrain.config import RunConfig, dump, load
from flowtrain.train.launch.processes import memory_and_threads
from flowtrain.train.launch.threads import threads_of


def model_config(model: Path, overrides: Sequence[str]) -> RunConfig:
    """Configuration of a run of a model, for what a profile needs of one.

    Args:
        model: Hugging Face folder; its weights are not read.
        overrides: Items `a.b=value`.

    Raises:
        ConfigError: A field cannot be used.
    """
    tree = {
        "run": "profile",
        "model": {"config": str(model.resolve())},
        "data": {"path": "none"},
        "train": {"steps": 1},
    }
    with tempfile.TemporaryDirectory(prefix="flowtrain-profile-") as folder:
        path = Path(folder) / "model.yaml"
        path.write_text(yaml.safe_dump(tree))
        return load(path, overrides)


def run_profile(
    config: RunConfig,
    out: Path,
    *,
    seconds: float,
    image_tokens: int,
    depth: int,
    as_json: bool,
) -> int:
    """Measure in a process of its own; returns its exit status.

    Args:
        config: The run.
        out: File to write, and to continue from.
        seconds: Time for measuring.
        image_tokens: Maximum tokens of an image.
        depth: Maximum layers of a module that are built; 0 for all of them.
        as_json: Print one line of JSON.
    """
    with tempfile.TemporaryDirectory(prefix="flowtrain-profile-") as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(dump(config))
        words = [
            *(sys.executable, "-m", "flowtrain.train.profile.main", str(path)),
            *("--out", str(out), "--seconds", str(seconds)),
            *("--threads", str(threads_of(config)), "--image-tokens", str(image_tokens)),
            *("--depth", str(depth)),
            *(["--json"] if as_json else []),
        ]
        process = subprocess.Popen(words, env={**os.environ, **memory_and_threads()})
        try:
            return process.wait()
        except KeyboardInterrupt:
            # Of a terminal it got the signal, too; it ignores further ones.
            process.send_signal(signal.SIGINT)
            return process.wait()  # Its file is complete.
        except BaseException:
            process.terminate()
            process.wait()
            raise
