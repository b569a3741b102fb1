"""How a run ended, for whoever looks at its folder later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flowtrain.config.checks import ConfigError
from flowtrain.train.state import atomic
from flowtrain.train.state.checkpoint import latest, read_meta
from flowtrain.train.state.files import read_text
from flowtrain.train.state.run_folder import lock_run, written_config

_FILE = "ended"
_WAY_OUT = "remove it; it says only how the run ended"


@contextmanager
def recorded_end(run: Path) -> Iterator[None]:
    """Write to `RUN/ended` how the block ended, in one line; it is empty until then."""
    path = run / _FILE
    atomic.write_text(path, "")
    text = "complete"
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        text = "stopped by a signal"
        raise
    except Exception as error:
        text = f"failed: {' '.join(str(error).split())}"
        raise
    finally:
        with suppress(OSError):  # The disk may be full, which is then what the block raises.
            atomic.write_text(path, text + "\n")


def how_it_ended(run: Path) -> str | None:
    """A line on how a run ended; None while its launcher runs.

    Args:
        run: Folder of a run that has started.

    Raises:
        RunFileError, CheckpointError: A file that tells it is damaged.
    """
    try:
        with lock_run(run):
            path = run / _FILE
            text = read_text(path, way_out=_WAY_OUT).strip() if path.exists() else ""
    except ConfigError:
        return None
    newest, config = latest(run), written_config(run)
    saved = 0 if newest is None else read_meta(newest).step + 1
    whole = "" if config is None else f" of {config.train.steps}"
    text = text or "its launcher was killed"
    line = f"{run}: the run has ended: {text}; {saved}{whole} steps are saved"
    return line if text == "complete" else f"{line}; --resume goes on from there"
