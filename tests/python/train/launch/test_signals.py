"""The first signal asks for a save, the second ends the process at once, and silently."""

from __future__ import annotations

import os
import signal

import pytest

from flowtrain.signals import exits
from flowtrain.train.launch.signals import exit_on_signals


@pytest.mark.parametrize(
    ("number", "end"),
    [
        (signal.SIGINT, KeyboardInterrupt),
        (signal.SIGTERM, SystemExit),
        (signal.SIGHUP, SystemExit),
    ],
)
def test_the_second_signal_ends_at_once_and_further_ones_are_ignored(
    number: signal.Signals, end: type[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(end) as ended, exits():
            try:
                with exit_on_signals() as stop:
                    stop.allowed = True
                    os.kill(os.getpid(), number)
                    assert stop.made == number
                    assert capfd.readouterr().err == ""
                    try:
                        os.kill(os.getpid(), number)
                    finally:
                        os.kill(os.getpid(), number)  # While the blocks of the run are left,
            finally:
                os.kill(os.getpid(), number)  # and those of the command.
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    # The command prints the text of a KeyboardInterrupt.
    said = capfd.readouterr().err + str(ended.value)
    assert said.count(f"{number.name}: ends at once") == 1
