"""Files that commands write are never those that they read."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowtrain.cli.main import main

PLAN = ["plan", "--model", "model", "--cluster", "1x8xH100", "--workload", "native"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([*PLAN, "--cluster", "read", "--out", "read"], "--out=read: it is read"),
        ([*PLAN, "--out", "model/config.json"], "--out=model/config.json: it is read"),
        ([*PLAN, "--workload", "read", "--export-out", "read"], "--export-out=read: it is read"),
        (["plan", "--from", "read", "--export-out", "./read"], "--export-out=read: it is read"),
        ([*PLAN, "--out", "a", "--plot", "a"], "--plot=a: --out is the same file"),
        ([*PLAN, "--plot", "none/a"], "--plot=none/a: there is no folder none"),
        (
            ["pack", "read", "--ranks", "1", "--max-tokens", "9", "--plot", "read"],
            "--plot=read: it is read",
        ),
        (["profile", "read", "--out", "read"], "--out=read: it is read"),
    ],
)
def test_a_file_that_is_read_or_cannot_be_written_is_refused_before_all_work(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    argv: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    files = [tmp_path / "read", tmp_path / "model/config.json"]
    for path in files:
        path.write_text("5\n")
    assert main(argv) == 2
    assert said in capsys.readouterr().err
    assert [path.read_text() for path in files] == ["5\n", "5\n"]
