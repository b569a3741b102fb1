"""How each start of a run ended, for whoever looks at its folder later."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from flowtrain.config.checks import ConfigError
from flowtrain.train.state.checkpoint_files import latest, read_meta
from flowtrain.train.state.files import RunFileError, read_text
from flowtrain.train.state.run_folder import lock_run, written_config

COMPLETE = "complete"
KILLED = "its launcher was killed"
_FILE = "ended"
_STARTED = "started "
_STOPPED = "stopped by "
# Names of signals, by the exit code of a launcher that they end.
_SIGNALS: dict[object, str] = {128 + each: each.name for each in signal.Signals}
_TIME = "%Y-%m-%d %H:%M:%S %z"
_WAY_OUT = "remove it; it says only how the run ended"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedStart:
    """A start of a run, and how it ended."""

    began: datetime | None
    """None if an older FlowTrain has started it."""
    end: str | None
    """How it ended; None if it goes on, or its launcher was killed."""


@contextmanager
def recorded_end(run: Path) -> Iterator[None]:
    """Append to `RUN/ended` that the run has started, and after the block, how it ended."""
    record_start(run)
    text = COMPLETE
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        code = 128 + signal.SIGINT if isinstance(error, KeyboardInterrupt) else error.code
        text = f"{_STOPPED}{_SIGNALS.get(code, 'a signal')}"
        raise
    except Exception as error:
        text = failed(str(error))
        raise
    finally:
        record_end(run, text)


def record_start(run: Path) -> None:
    """Append to `RUN/ended` that the run has started."""
    record_end(run, f"{_STARTED}{datetime.now(UTC):{_TIME}}")


def record_end(run: Path, text: str) -> None:
    """Append to `RUN/ended` how the run has ended, in one line."""
    # The disk may be full, which is then what ends the run.
    with suppress(OSError), run.joinpath(_FILE).open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


def read_starts(run: Path) -> list[RecordedStart]:
    """The starts of a run, in their order.

    Raises:
        RunFileError: The file that tells them is damaged.
    """
    path, starts = run / _FILE, list[RecordedStart]()
    for line in read_text(path, way_out=_WAY_OUT).splitlines() if path.exists() else ():
        if line.startswith(_STARTED):
            try:
                at = datetime.strptime(line.removeprefix(_STARTED), _TIME)
            except ValueError as error:
                raise RunFileError(f"{path}: {error}; {_WAY_OUT}") from error
            starts.append(RecordedStart(began=at, end=None))
        else:
            began = starts.pop().began if starts and starts[-1].end is None else None
            starts.append(RecordedStart(began=began, end=line))
    return starts


def failed(reason: str) -> str:
    """The text for a failure, in one line."""
    return f"failed: {' '.join(reason.split())}"


def code_of(end: str) -> int:
    """Exit code of a start that ended in this way."""
    name = end.removeprefix(_STOPPED)
    if name in signal.Signals.__members__:
        return 128 + signal.Signals[name]
    return 0 if end == COMPLETE else 1


def end_of_start(run: Path, start: int) -> str | None:
    """How a start of a run ended; None while its launcher runs.

    Args:
        run: Folder of the run.
        start: Number of the start, from 0.

    Raises:
        RunFileError: The file that tells it is damaged.
    """
    end = _recorded(run, start)
    if end is None:
        with suppress(ConfigError), lock_run(run):
            end = _recorded(run, start) or KILLED
    return end


def _recorded(run: Path, start: int) -> str | None:
    return next((each.end for each in read_starts(run)[start:]), None)


def how_it_ended(run: Path) -> str | None:
    """A line on how a run ended; None while its launcher runs.

    Args:
        run: Folder of a run that has started.

    Raises:
        RunFileError, CheckpointError: A file that tells it is damaged.
    """
    try:
        with lock_run(run):
            starts = read_starts(run)
    except ConfigError:
        return None
    newest, config = latest(run), written_config(run)
    if not starts and newest is None:
        return (
            f"{run}: no run was started in this folder; if the run is on another host, join it "
            "first: flowtrain host RUN --join ADDRESS:PORT --token FILE"
        )
    saved = 0 if newest is None else read_meta(newest).step + 1
    whole = "" if config is None else f" of {config.train.steps}"
    text = (starts[-1].end if starts else None) or KILLED
    line = f"{run}: the run has ended: {text}; {saved}{whole} steps are saved"
    if text == COMPLETE:
        return line
    return f"{line}; --resume (flowtrain.connect: resume=True) goes on from there"
