"""Commands that install the packages of an extra."""

from __future__ import annotations

import re
from importlib import metadata

import pytest

from flowtrain.extras import install_command


def absent(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    found = metadata.version

    def version(name: str) -> str:
        if name in names:
            raise metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(metadata, "version", version)


def test_the_command_names_what_is_missing_also_from_extras_within_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    absent(monkeypatch, "torch", "pyyaml", "jinja2", "torchvision", "scikit-learn", "av")
    assert install_command("demo") == (
        "pip install 'torch<3,>=2.13' pyyaml torchvision jinja2 scikit-learn"
    )
    assert re.fullmatch(r"pip install 'av>=\d+'", install_command("video"))


def test_without_metadata_the_command_is_for_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    assert install_command("hf") == "pip install -e '.[hf]' in a checkout"
