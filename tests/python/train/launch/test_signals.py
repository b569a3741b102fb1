"""The first signal asks for a save, the second ends the process at once."""

from __future__ import annotations

import os
import signal

import pytest

from flowtrain.train.launch.signals import exit_on_signals


@pytest.mark.parametrize(
    ("number", "end"),
    [
        (signal.SIGINT, KeyboardInterrupt),
        (signal.SIGTERM, SystemExit),
        (signal.SIGHUP, SystemExit),
    ],
)
def test_the_second_signal_ends_at_once(
    number: signal.Signals, end: type[BaseException], capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(end) as ended, exit_on_signals() as stop:
            stop.allowed = True
            os.kill(os.getpid(), number)
            assert stop.made == number
            assert capfd.readouterr().err == ""
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    # The command prints the text of a KeyboardInterrupt.
    said = capfd.readouterr().err + str(ended.value)
    assert f"{number.name}: ends at once" in said
