"""The examples in the README run as they stand, each as a script of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture
def scripts(tmp_path: Path) -> list[list[str]]:
    """Commands that run the examples, in their order."""
    commands = []
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    for number, text in enumerate(blocks):
        script = tmp_path / f"example{number}.py"
        # Two runs of the tests at once do not meet.
        script.write_text(text.replace('"vision"', f'"readme-{os.getpid()}"'))
        commands.append([sys.executable, str(script)])
    return commands


@pytest.mark.parametrize("first", ["producer", "consumer"])
def test_the_hand_off_runs_as_two_scripts(scripts: list[list[str]], first: str) -> None:
    names = ["producer", "consumer"]
    names.sort(key=lambda name: name != first)
    commands = dict(zip(["producer", "consumer"], scripts[:2], strict=True))
    started = {
        name: subprocess.Popen(
            commands[name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for name in names
    }
    ended = {
        name: (*process.communicate(timeout=100), process) for name, process in started.items()
    }
    assert ended["producer"][:2] == ("", "")
    assert ended["consumer"][:2] == ("7 torch.Size([576, 1024]) tensor(0.5000)\n", "")
    assert [run.returncode for *_, run in ended.values()] == [0, 0]


def test_the_packed_loop_runs(scripts: list[list[str]]) -> None:
    run = subprocess.run(scripts[2], capture_output=True, text=True, timeout=200)
    assert (run.returncode, run.stdout) == (0, ""), run.stderr
