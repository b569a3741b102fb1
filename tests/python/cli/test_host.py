"""Arguments of `flowtrain host`, checked before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowtrain.cli.main import main


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--listen", "localhost:4711"), "--listen localhost:4711: it is a name; give the numeric"),
        (
            ("--listen", "127.0.0.1:0", "--interface", "localhost"),
            "--interface localhost: it is a name; give the numeric",
        ),
        (("--listen", "[2001:db8::1]:4711"), "--listen [2001:db8::1]:4711: "),
        (("--listen", "127.0.0.1:0", "--path", "ucx", "--ucx", "/none.so"), "--ucx: UCX /none.so"),
    ],
)
def test_an_address_or_a_library_that_cannot_be_used_is_told_at_once(
    option: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    given = [*option, "--token", str(token), "--timeout", "0"]
    assert main(["host", str(tmp_path / "run"), *given]) == 2
    assert said in capsys.readouterr().err


def test_an_option_for_other_hosts_is_refused_without_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--interface", "127.0.0.1", "--timeout", "9"]
    assert main(["host", str(tmp_path / "run.yaml"), *options]) == 2
    said = "--interface, --timeout: for other hosts alone; give --listen, too, or leave it out"
    assert said in capsys.readouterr().err
