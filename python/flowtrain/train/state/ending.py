"""How a run ended, for whoever looks at its folder later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flowtrain.config.checks import ConfigError
from flowtrain.config.load import load
from flowtrain.train.state import atomic
from flowtrain.train.state.checkpoint import latest, read_meta
from flowtrain.train.state.run_folder import lock_run

_FILE = "ended"


@contextmanager
def recorded_end(run: Path) -> Iterator[None]:
    """Write to `RUN/ended` how the block ended, in one line; an earlier one is deleted first."""
    path = run / _FILE
    path.unlink(missing_ok=True)
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
    """
    try:
        with lock_run(run):
            path = run / _FILE
            text = path.read_text().strip() if path.exists() else "its launcher was killed"
    except ConfigError:
        return None
    steps = load(run / "config.yaml").train.steps
    newest = latest(run)
    saved = 0 if newest is None else read_meta(newest).step + 1
    line = f"{run}: the run has ended: {text}; {saved} of {steps} steps are saved"
    return line if text == "complete" else f"{line}; --resume goes on from there"
