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

COMPLETE = "complete"
_FILE = "ended"
_WAY_OUT = "remove it; it says only how the run ended"


@contextmanager
def recorded_end(run: Path) -> Iterator[None]:
    """Write to `RUN/ended` how the block ended, in one line; it is empty until then."""
    record_end(run, "")
    text = COMPLETE
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        text = "stopped by a signal"
        raise
    except Exception as error:
        text = failed(str(error))
        raise
    finally:
        record_end(run, text)


def record_end(run: Path, text: str) -> None:
    """Write to `RUN/ended` how a run has ended; empty while it goes on."""
    with suppress(OSError):  # The disk may be full, which is then what ends the run.
        atomic.write_text(run / _FILE, f"{text}\n" if text else "")


def failed(reason: str) -> str:
    """The text for a failure, in one line."""
    return f"failed: {' '.join(reason.split())}"


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
    if text == COMPLETE:
        return line
    return f"{line}; --resume (flowtrain.connect: resume=True) goes on from there"
