"""A bar appears on a terminal, and nowhere else; it leaves the terminal as it was."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from terminals import Terminal, has_cursor, rows

from flowtrain import progress
from flowtrain.cli.main import main

# A command that prints a row, and then works until it is interrupted.
COMMAND = """
import sys, time
from flowtrain import progress
from flowtrain.cli import clean
from flowtrain.cli.main import command

def run(given):
    with progress.bar("loading"):
        print("a row", flush=True)
        for _ in progress.over("waiting [b] {2}", range(1000)):
            time.sleep(0.05)

clean.run = run
sys.argv[1:] = ["clean"]
sys.exit(command())
"""


@pytest.fixture(autouse=True)
def _size_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size is that of the terminal, whatever the environment of the tests says."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("LINES", raising=False)


@pytest.mark.limit(60)
@pytest.mark.parametrize("piped", [False, True])
def test_ctrl_c_removes_the_bar_and_shows_the_cursor(piped: bool) -> None:
    terminal = Terminal()
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND],
        stdout=subprocess.PIPE if piped else terminal.theirs,
        stderr=terminal.theirs,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as command:
        while "left" not in terminal.so_far():
            assert command.poll() is None, terminal.shown()
            time.sleep(0.05)
        command.send_signal(signal.SIGINT)
        output, _ = command.communicate()
    shown = terminal.shown()
    assert command.returncode in (130, -signal.SIGINT)
    # What is printed is above the bar, or where standard output goes.
    assert (output == "a row\n", "a row" in rows(shown)) == (piped, not piped)
    bars = [len(row) for row in rows(shown) if row.startswith("waiting [b] {2}  ")]
    # A terminal of 100 columns writes ^C behind the bar, which must not make it two rows.
    assert 80 < min(bars) <= max(bars) <= 98
    assert rows(shown)[-2:] == ["flowtrain: interrupted", ""]
    assert has_cursor(shown)


@pytest.mark.parametrize("reason", ["no terminal", "no rich"])
def test_there_is_nothing_without_a_terminal_or_without_rich(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    ours, theirs = os.pipe()
    if reason == "no rich":
        monkeypatch.setitem(sys.modules, "rich.progress", None)
    # It makes rich take any file for a terminal.
    monkeypatch.setenv("FORCE_COLOR", "1")
    with (
        os.fdopen(theirs, "w") as pipe,
        os.fdopen(os.dup(terminal.theirs), "w") as output,
    ):
        monkeypatch.setattr(sys, "stdout", output)
        monkeypatch.setattr(sys, "stderr", output if reason == "no rich" else pipe)
        with progress.bar("loading"):
            assert not progress.is_shown()
            assert list(progress.over("items", "abc")) == ["a", "b", "c"]
    assert (os.read(ours, 1), terminal.shown()) == (b"", "")
    os.close(ours)


def test_a_bar_without_ticks_is_drawn_when_something_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    with os.fdopen(os.dup(terminal.theirs), "w") as output:
        monkeypatch.setattr(sys, "stderr", output)
        with progress.bar("first", ticks=False), progress.bar("within it"):
            for text, done in (("second", 1), ("second", 2), ("third", 2)):
                progress.show(text, done, 4)
    drawn = [row.split("  ")[0] for row in rows(terminal.shown())]
    texts = [text for text, _ in itertools.groupby(filter(None, drawn))]
    assert texts == ["first", "within it", "second", "third"]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("pack video --ranks 2 --max-tokens 32768 --samples 64", "choosing the slots"),
        ("data digits {folder} --train 4 --heldout 2", "writing heldout samples"),
        ("bench ring --seconds 0.01 --json", "descriptors through a ring"),
    ],
)
def test_a_command_says_how_far_it_is(
    command: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal = Terminal()
    with os.fdopen(os.dup(terminal.theirs), "w") as output:
        monkeypatch.setattr(sys, "stderr", output)
        assert main([word.format(folder=tmp_path / "digits") for word in command.split()]) == 0
    shown = terminal.shown()
    assert any(row.startswith(f"{says} ") for row in rows(shown)), shown
    assert rows(shown)[-1] == "" and has_cursor(shown)
    assert "\x1b" not in capsys.readouterr().out
