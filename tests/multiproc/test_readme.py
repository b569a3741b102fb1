"""Every program and command of the README and the guides runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT.joinpath("README.md").read_text()
GUIDES = ROOT.joinpath("docs", "guides.md").read_text()


def blocks(page: str, *kinds: str) -> list[tuple[str, str]]:
    """Kind and text of the code blocks of these kinds."""
    found = re.findall(r"```(\w*)\n(.*?)```", page, re.DOTALL)
    return [(kind, text) for kind, text in found if kind in kinds]


@pytest.fixture
def scripts(tmp_path: Path) -> list[list[str]]:
    """Commands that run the programs of the README that are whole, in their order."""
    commands = []
    whole = [text for _, text in blocks(README, "python") if text.startswith("import")]
    for number, text in enumerate(whole):
        script = tmp_path / f"example{number}.py"
        # Two runs of the tests at once do not meet.
        script.write_text(text.replace('"vision"', f'"readme-{os.getpid()}"'))
        commands.append([sys.executable, str(script)])
    return commands


@pytest.mark.parametrize("first", ["producer", "consumer"])
def test_the_hand_off_runs_as_two_scripts(scripts: list[list[str]], first: str) -> None:
    names = ["producer", "consumer"]
    names.sort(key=lambda name: name != first)
    commands = dict(zip(["producer", "consumer"], scripts, strict=True))
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


def commands_of(page: str, *kinds: str) -> list[str]:
    """The commands of code blocks, without comments."""
    lines = [line for _, text in blocks(page, *kinds) for line in text.splitlines()]
    return [line.partition(" #")[0].strip() for line in lines if line.strip()]


def test_every_command_of_the_readme_is_one_of_the_guides_or_of_make() -> None:
    others = ["make demo", "make test", "pip install .", "pip install '.[hf]'"]
    known = {*commands_of(GUIDES, "bash"), *others}
    found = commands_of(README, "", "bash")
    assert len(found) == 8 and not [line for line in found if line not in known]
    assert len(README.splitlines()) <= 150


@pytest.mark.deep
@pytest.mark.limit(900)
def test_the_guides_run_from_their_first_line_to_the_last(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, arguments in (("flowtrain", ["-m", "flowtrain"]), ("python", [])):
        _write_program(folder / name, [sys.executable, *arguments])
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    ran = 0
    for kind, text in blocks(GUIDES, "yaml", "python", "bash"):
        if kind != "bash":
            name = re.match(r"# (\S+)\n", text)
            assert name is not None, text
            tmp_path.joinpath(name[1]).write_text(text)
            continue
        # FlowTrain is installed already.
        lines = "".join(line for line in text.splitlines(True) if not line.startswith("pip "))
        # In this shell the status of `wait` without arguments is 0: each process is asked for its.
        lines = re.sub(r"^wait$", "wait $!", lines, flags=re.MULTILINE)
        run = subprocess.run(
            ["bash", "-ec", lines],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert run.returncode == 0, f"{lines}\n{run.stdout[-3000:]}\n{run.stderr[-3000:]}"
        ran += 1
    assert ran == len(blocks(GUIDES, "bash")) > 10
    for file in ("runs/first/report.html", "best/config.json", "loop-model/config.json"):
        assert tmp_path.joinpath(file).exists(), file


def _write_program(path: Path, command: Sequence[str]) -> None:
    path.write_text(f'#!/bin/sh\nexec {" ".join(command)} "$@"\n')
    path.chmod(0o755)
