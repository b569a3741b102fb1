from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
from cost.released import qwen2_5_vl

DOCS = Path(__file__).resolve().parents[4] / "docs"


def test_the_example_prints_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (DOCS / "planner.md").read_text().split("```python\n")[1].split("```")[0]
    qwen2_5_vl().save_pretrained(tmp_path / "models" / "Qwen2.5-VL-7B")
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert len(printed.getvalue().splitlines()) == 20
