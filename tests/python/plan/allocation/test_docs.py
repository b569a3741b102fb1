"""The examples of docs/allocator.md print what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[4].joinpath("docs", "allocator.md").read_text()


@pytest.mark.parametrize("number", [0, 1])
def test_the_examples_print_what_the_page_says(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```(?:python|text)\n(.*?)```", PAGE, re.DOTALL)
    code, printed = blocks[2 * number : 2 * number + 2]
    exec(code, {})
    assert capsys.readouterr().out == printed
