"""Shells complete commands, options, choices and files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flowtrain.cli.main import main

# What bash does when the last word is to be completed.
COMPLETE = """
source ./script
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
$(complete -p flowtrain | grep -oP '(?<=-F )\\S+') 2> /dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    pytest.importorskip("shtab")
    assert main(["--print-completion", "bash"]) == 0
    tmp_path.joinpath("script").write_text(capsys.readouterr().out)
    return tmp_path / "script"


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("flowtrain tr", {"train", "trace"}),
        ("flowtrain data ch", {"check"}),
        ("flowtrain train run.yaml --re", {"--resume"}),
        ("flowtrain export RUN --dtype bf", {"bfloat16"}),
        # Files, for a `Path` and for a word that may be something else, too.
        ("flowtrain train ru", {"run.yaml"}),
        ("flowtrain pack ru", {"run.yaml"}),
    ],
)
def test_bash_completes_what_is_typed(script: Path, typed: str, completed: set[str]) -> None:
    script.parent.joinpath("run.yaml").touch()
    done = subprocess.run(
        ["bash", "-c", COMPLETE, "bash", *typed.split()],
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert set(done.stdout.split()) == completed, done.stderr


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_reads_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert main(["--print-completion", "zsh"]) == 0
    script = tmp_path / "_flowtrain"
    script.write_text(capsys.readouterr().out)
    subprocess.run(["zsh", "-n", script], check=True, timeout=60)


def test_without_the_library_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["--print-completion", "bash"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("flowtrain: shtab is not installed; run: pip install ")
    assert "shell" in said or "shtab>=" in said
